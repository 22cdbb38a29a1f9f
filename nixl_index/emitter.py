"""The emitter: starts a scout, reads its stream into watchdog's queue, and replaces a scout that fails."""

from __future__ import annotations

import builtins
import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from watchdog.observers.api import EventEmitter, EventQueue, ObservedWatch

from nixl_index import records, wire
from nixl_index.errors import NixlIndexError, WireError
from nixl_index.events import Frames, ScoutEnded, ScoutStarted
from nixl_index.link import Isolation, Link
from nixl_index.logs import EventLog
from nixl_index.wire import Frame

logger = logging.getLogger(__name__)

MAX_QUEUED = 4 << 20
"""Bytes of the stream that may wait for the index. Beyond, the scout's pipe fills, and it holds its scans back."""
PING_SECONDS = 1.0
"""After this silence the scout is asked for a sign of life."""
STALL_SECONDS = 10.0
"""After this silence the scout is given up."""
START_SECONDS = 30.0
"""How long a new scout may take to say hello, and at first to take its bases."""
_MAX_DELAY = 5.0
_HUNG_SECONDS = 30.0
"""How long a base is left alone at which a scout hung; twice as long each time that it hangs again soon after."""
_MAX_REST_SECONDS = 960.0

Configure = Callable[[], records.Config]


class ScoutEmitter(EventEmitter):
    """Reads the stream of one scout at a time into the event queue. Sending to it never blocks."""

    def __init__(
        self,
        event_queue: EventQueue,
        watch: ObservedWatch,
        *,
        configure: Configure,
        isolation: Isolation,
        **options: Any,
    ) -> None:
        super().__init__(event_queue, watch, **options)
        self.name = "nixl-index-emitter"
        self.isolation = isolation
        self.restarts = 0
        self._log = EventLog(watch.path)
        self._configure = configure
        self._link: Link | None = None
        self._configured: Link | None = None
        self._first: list[Frame] = []
        self._heard = self._pinged = 0.0
        self._rests: dict[int, tuple[float, float]] = {}
        """Until when a base is left alone at which a scout hung, and for how long that was."""
        self._delay = 0.0
        self._queued = 0
        self._came: deque[float] = deque()
        self._replace_for = ""
        self._room = threading.Condition()

    def on_thread_start(self) -> None:
        """Start the first scout and have it take the bases. Raises what is wrong with them, or TimeoutError."""
        self._connect(START_SECONDS, await_bases=True)

    def on_thread_stop(self) -> None:
        """Have the thread end; it closes the link."""
        link = self._link
        if link:
            link.wake()
        with self._room:
            self._room.notify_all()
        if not self.is_alive():
            self._disconnect(gently=True)

    def send(self, message: records.Message) -> None:
        """Send a command to the present scout, if there is one. Never blocks."""
        link = self._link
        if link and link is self._configured:
            link.send(wire.encode(message))

    def replace(self, reason: str) -> None:
        """Give the present scout up, and start another. Does not block."""
        self._replace_for = reason
        link = self._link
        if link:
            link.wake()

    def released(self, size: int) -> None:
        """So many bytes of the stream, the oldest that waited, were handled."""
        with self._room:
            self._queued -= size
            self._came.popleft()
            self._room.notify_all()

    @property
    def pid(self) -> int:
        """The process id of the scout; 0 where it is a thread, or is none."""
        link = self._link
        return link.pid if link else 0

    @property
    def oldest_unhandled(self) -> float:
        """For how many seconds the oldest part of the stream that is not handled yet has waited."""
        try:
            return monotonic() - self._came[0]
        except IndexError:
            return 0.0

    @property
    def queued(self) -> int:
        """Bytes of the stream that wait for the handler."""
        return self._queued

    def abandon(self) -> None:
        """In a forked child: drop the copies of the descriptors."""
        if self._link:
            self._link.abandon()

    def run(self) -> None:
        """Read until stopped. Nothing but `stop` ends it: whatever else would, the scout is replaced."""
        while self.should_keep_running():
            try:
                self.queue_events(self.timeout)
            except BaseException as error:  # noqa: BLE001 - the thread's last resort
                self._give_up(f"the emitter's thread was interrupted: {error!r}")
        words = self._disconnect(gently=True)
        if words:
            self._log.say(logger, "scout_left_behind", f"the scout did not end in order: {words}")

    def queue_events(self, timeout: float) -> None:
        """One read of the stream, or one try to replace the scout."""
        try:
            if self._link:
                self._read(self._link, timeout)
            else:
                self._replace()
        except Exception as error:  # noqa: BLE001 - whatever it is, the scout is replaced and all is listed again
            self._give_up(f"{type(error).__name__}: {error}")

    # --- reading ---

    def _read(self, link: Link, timeout: float) -> None:
        frames, self._first = self._first, []
        if not frames:
            got = link.read(min(timeout, PING_SECONDS))
            if not self.should_keep_running():
                return
            reason, self._replace_for = self._replace_for, ""
            if reason:
                self._give_up(reason)
                return
            if got is None:
                self._give_up("it ended")
                return
            frames = got
        now = monotonic()
        if frames:
            self._heard = self._pinged = now
            self._deliver(frames)
        elif now - self._heard > STALL_SECONDS:
            self._on_stall(link)
        elif now - self._pinged >= PING_SECONDS:
            self._pinged = now
            link.send(wire.encode(records.Look(0, [], [])))

    def _deliver(self, frames: list[Frame]) -> None:
        event = Frames(frames, self.released)
        with self._room:
            self._queued += event.size
            self._came.append(event.came)
        self.queue_event(event)
        with self._room:
            self._room.wait_for(lambda: self._queued < MAX_QUEUED or not self.should_keep_running())
        self._heard = monotonic()

    def _on_stall(self, link: Link) -> None:
        where, base = "", link.position.base
        if base >= 0:
            where = f" (it was at base {self._configure().bases[base][0]!r})"
            until, rest = self._rests.get(base, (0.0, 0.0))
            hangs_again = monotonic() < until + max(rest, 2 * STALL_SECONDS)
            rest = min(2 * rest, _MAX_REST_SECONDS) if hangs_again else _HUNG_SECONDS
            self._rests[base] = (monotonic() + rest, rest)
        self._give_up(f"no sign of life for {STALL_SECONDS:.0f} s{where}")

    # --- starting and ending scouts ---

    def _connect(self, seconds: float, await_bases: bool = False) -> None:
        try:
            self._start(seconds, await_bases)
        except _NoScoutError as error:
            self._disconnect()
            if self.isolation == "thread":
                raise NixlIndexError(f"no scout could be started: {error}") from error
            text = f"no scout process could be started ({error}): using a thread"
            self._log.say(logger, "thread_fallback", text)
            self.isolation = "thread"
            try:
                self._start(seconds, await_bases)
            except _NoScoutError as also:
                raise NixlIndexError(f"no scout could be started: {also}") from also

    def _start(self, seconds: float, await_bases: bool) -> None:
        config = self._configure()
        for base, (until, _) in self._rests.items():
            config.bases[base][3] = max(0.0, until - monotonic())
        try:
            self._link = link = Link(self.isolation)
        except OSError as error:
            raise _NoScoutError(str(error)) from error
        until = monotonic() + seconds
        frames: list[Frame] = []
        self._await(link, frames, records.Hello, 1, until)
        link.send(wire.encode(config))
        self._configured = link  # from now on commands may follow; those given before are sent again
        if await_bases:
            self._await(link, frames, records.BaseState, len(config.bases), until)
        self._first = frames
        self._heard = self._pinged = monotonic()

    def _await(self, link: Link, frames: list[Frame], kind: type, count: int, until: float) -> None:
        """Read until so many records of this kind came. Raises the fault that the scout tells instead."""
        hello = kind is records.Hello
        while count > 0:
            if not self.should_keep_running():
                raise NixlIndexError("closed while starting")
            if monotonic() > until:
                if hello:
                    raise _NoScoutError("it did not say hello in time")
                raise TimeoutError("the scout did not take the base dirs in time: does a disk hang?")
            try:
                got = link.read(0.1)
            except WireError as error:
                raise _NoScoutError(str(error)) from error
            if got is None:
                raise _NoScoutError(self._disconnect() or "it ended at once")
            for frame in got:
                message = wire.decode(*frame)
                if isinstance(message, records.Fault):
                    raise _fault(message)
                count -= isinstance(message, kind)
            frames += got

    def _replace(self) -> None:
        if self._delay:
            self.stopped_event.wait(self._delay)
        self._delay = min(_MAX_DELAY, self._delay * 2 or 0.1)
        if self.should_keep_running():
            self._connect(START_SECONDS)
            self.restarts += 1
            self.queue_event(ScoutStarted())

    def _give_up(self, reason: str) -> None:
        words = self._disconnect()
        self.queue_event(ScoutEnded(f"{reason}: {words}" if words else reason))

    def _disconnect(self, gently: bool = False) -> str:
        link, self._link = self._link, None
        return link.close(wire.encode(records.Stop()) if gently else b"") if link else ""

    def healthy(self) -> None:
        """The index is whole again: the next failure is not a repeated one."""
        self._delay = 0.0


class _NoScoutError(Exception):
    """No scout could be started this way."""


def _fault(fault: records.Fault) -> Exception:
    """The exception that the scout met: a built-in one of that name where there is one."""
    kind = getattr(builtins, fault.kind, None)
    if isinstance(kind, type) and issubclass(kind, (OSError, ValueError)):
        return kind(fault.message)
    return NixlIndexError(f"the scout failed: {fault.message}")
