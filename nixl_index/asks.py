"""Commands that wait for their answer. An answer comes in the order of the stream, after what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from nixl_index.records import Done, Evicted, Locked, Measured, Message

Answer = Done | Evicted | Measured | Locked


class Source(Protocol):
    """Where the stream comes from."""

    def send(self, message: Message) -> None:
        """Send a command. Does not block."""

    def post(self) -> None:
        """Have `dispatch` called with a `Turn`."""

    def healthy(self) -> None:
        """The index is whole: the next failure of a scout is not a repeated one."""

    def replace(self, reason: str) -> None:
        """Have another scout tell everything from the start."""


class Ask:
    """A numbered command, from when it is sent until it is answered. `wait` blocks; everything else does not."""

    def __init__(self, message: Message, on_answer: Callable[[Message], None] | None) -> None:
        self.message = message
        self.on_answer = on_answer
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.answered = threading.Event()

    def wait(self, until: float | None, what: str) -> None:
        """Wait until `until`, in seconds of `time.monotonic`. Raises TimeoutError, or what ended the wait."""
        if not self.answered.wait(None if until is None else max(0.0, until - monotonic())):
            raise TimeoutError(f"{what}: no answer from the scout in time")
        if self.error:
            raise self.error


class Asks:
    """The commands that are under way. They outlive a scout: its successor gets them again, which is harmless, since
    a shard that is gone is fine and one that was rewritten is left alone."""

    def __init__(self, source: Source) -> None:
        self._send = source.send
        self._lock = threading.Lock()  # of the fields below: a leaf
        self._waiting: dict[int, Ask] = {}
        self._number = 0
        self._ended: Exception | None = None

    def ask(self, command: Callable[[int], Message], on_answer: Callable[[Message], None] | None = None) -> Ask:
        """Number a command and send it. `on_answer` runs on the observer's thread, before anyone who waits goes on."""
        with self._lock:
            if self._ended:
                raise self._ended
            self._number += 1
            ask = self._waiting[self._number] = Ask(command(self._number), on_answer)
        self._send(ask.message)
        return ask

    def answer(self, message: Answer) -> None:
        """The answer came. One that nobody waits for is fine."""
        with self._lock:
            ask = self._waiting.pop(message.number, None)
        if ask:
            ask.answer = message
            try:
                if ask.on_answer:
                    ask.on_answer(message)
            finally:
                ask.answered.set()

    def resend(self) -> None:
        """Send all that wait to a new scout, in their order."""
        with self._lock:
            waiting = list(self._waiting.values())
        for ask in waiting:
            self._send(ask.message)

    def end(self, error: Exception) -> None:
        """No answer will come any more: whoever waits, or asks from now on, gets this error."""
        with self._lock:
            self._ended = error
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for ask in waiting:
            ask.error = error
            ask.answered.set()
