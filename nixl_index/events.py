"""What the observer dispatches: pieces of the stream, in order, and what happens to the scout that tells them."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from watchdog.events import FileSystemEvent

from nixl_index.wire import Frame


class StreamEvent(FileSystemEvent):
    """A piece of the stream, in order. Equal to itself alone: watchdog's queue drops an event that equals the last."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self) -> None:
        super().__init__("")

    def release(self) -> None:
        """Called when the event was handled."""


class Frames(StreamEvent):
    """Records of the stream, as they came."""

    def __init__(self, frames: list[Frame], released: Callable[[int], None]) -> None:
        super().__init__()
        self.frames = frames
        self.came = monotonic()
        self.size = sum(len(payload) for _, payload in frames)
        self._released = released

    def release(self) -> None:
        """Lets the emitter read on."""
        self._released(self.size)


class ScoutStarted(StreamEvent):
    """A new scout took over; the records that follow are its own, and it knows of no command given before."""


class ScoutEnded(StreamEvent):
    """The scout is gone; another one will be started."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Fault(StreamEvent):
    """Something interrupted the thread that dispatches: an event may not have been handled."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Turn(StreamEvent):
    """Nothing of the stream: the handler asked for another turn."""
