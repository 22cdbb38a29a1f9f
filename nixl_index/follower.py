"""The one writer of the index: takes the stream, in order, on the observer's thread, and keeps the order true."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from watchdog.events import FileSystemEvent, FileSystemEventHandler

from nixl_index import records, wire
from nixl_index.asks import Asks
from nixl_index.errors import FailedError, WireError
from nixl_index.group import Place
from nixl_index.keys import KeyScheme
from nixl_index.layout import Layout
from nixl_index.observer import Frames, ScoutEnded, ScoutStarted, Turn
from nixl_index.order import Change, GroupOrder
from nixl_index.records import Message, Origin, Phase

logger = logging.getLogger(__name__)

CHUNK_SECONDS = 0.001
"""After so long the writer lets the lock and the GIL go, so that no thread of the host waits long for either."""
_CHUNK_RECORDS = 64
_LOOK_NAMES = 2_000
_MAX_FAULTS = 3
_MENDING = (Origin.RECONCILE, Origin.SCRUB)

Split = Callable[[str], "tuple[str, str] | None"]


def split_by(scheme: Callable[[str], str | None], on_error: Callable[[Exception], None]) -> Split:
    """The scheme as a function from a file name to (key, tail). The tail of a key that is no prefix of the name is `/`
    and the whole name. A name that the scheme fails on is ignored: its file is never evicted."""
    if isinstance(scheme, KeyScheme):
        return scheme.split

    def split(name: str) -> tuple[str, str] | None:
        try:
            key = scheme(name)
            if key is None:
                return None
            if not isinstance(key, str) or not key:
                raise TypeError(f"it gave {key!r} for {name!r}: a group key is a string that is not empty")
        except Exception as error:  # noqa: BLE001 - it is the caller's code
            on_error(error)
            return None
        return key, name[len(key) :] if name.startswith(key) else "/" + name

    return split


class BaseView:
    """A base as the stream told of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.device = self.inode = 0
        self.frozen = ""


class Follower(FileSystemEventHandler):
    """Applies the stream to a `GroupOrder`. `lock` guards the order: hold it for O(log n) work, never for I/O, logging
    or a callback. There is no other lock that is held while this one is taken."""

    def __init__(
        self,
        paths: Sequence[str],
        scheme: Callable[[str], str | None],
        layout: Layout,
        intervals: tuple[float, float],
        send: Callable[[Message], None],
        post: Callable[[], None],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.lock = threading.Lock()
        self.order = GroupOrder(clock)
        self.places: list[Place] = []
        self.bases = [BaseView(path) for path in paths]
        self.asks = Asks(send)
        self.ready = threading.Event()
        self.failure: Exception | None = None
        self.losses = self.overflows = self.reconciles = self.mended = 0
        self.ignored = self.foreign = 0
        self.quarantined: set[str] = set()
        self.listed: set[int] = set()
        self.status = records.Status(0, 0, 0, "")
        self.last_error = ""
        self.oldest_unhandled: float | None = None
        self._parts: list[list[str]] = []
        self._scheme = scheme
        self._split = split_by(scheme, self._on_scheme_error)
        self._layout = layout
        self._intervals = intervals
        self._post = post
        self._dirty = True
        self._scheme_failed = False
        self._faults = 0
        self._suspects: dict[int, bool] = {}
        self._sweep: Iterator[bool] | None = None
        self._sweeps_due = self._sweeps_done = 0
        self._swept = threading.Condition()
        self._mending: set[int] = set()
        self._handlers: dict[type[Message], Callable[..., None]] = {
            records.Shards: self._on_shards,
            records.Gone: self._on_gone,
            records.Directory: self._on_directory,
            records.Listing: self._on_listing,
            records.BaseState: self._on_base,
            records.Sweep: self._on_sweep,
            records.Lost: self._on_lost,
            records.Crawled: self._on_crawled,
            records.Status: self._on_status,
            records.Fault: self._on_fault,
            records.Done: lambda done: self.asks.answer(done.number, done),
            records.Evicted: lambda evicted: self.asks.answer(evicted.number, evicted),
            records.At: lambda at: None,
            records.Hello: lambda hello: None,
        }

    def configure(self) -> records.Config:
        """What a new scout has to know."""
        places = zip(self.places, self._parts, strict=True)
        return records.Config(
            records.VERSION,
            0,
            [[base.path, base.device, base.inode, 0.0] for base in self.bases],
            self._layout.pattern,
            [[number, place.base, parts] for number, (place, parts) in enumerate(places)],
            *self._intervals,
        )

    @property
    def dirty(self) -> bool:
        """Does the index wait for a first scan or a reconcile?"""
        return self._dirty or self._sweeps_done < self._sweeps_due

    # --- events ---

    def dispatch(self, event: FileSystemEvent) -> None:
        """Apply one piece of the stream. An exception of ours makes the index list everything again; if that
        does not help, it fails: every call that would lie raises."""
        if self.failure:
            return
        try:
            if isinstance(event, Frames):
                self.oldest_unhandled = event.came
                for kind, payload in event.frames:
                    message = wire.decode(kind, payload)
                    self._handlers[type(message)](message)
                self.oldest_unhandled = None
            elif isinstance(event, Turn):
                self._step()
            elif isinstance(event, ScoutStarted):
                self.asks.resend()
            elif isinstance(event, ScoutEnded):
                self._on_ended(event.reason)
        except Exception as error:
            logger.exception("nixl_index: applying the stream failed: listing everything again")
            self._on_error(error)

    def _on_error(self, error: Exception) -> None:
        self._note(f"{type(error).__name__}: {error}")
        self._faults += 1
        self._dirty = True
        if self._faults > _MAX_FAULTS:
            self.fail(FailedError(f"applying the stream failed {self._faults} times in a row, last with {error!r}"))
        else:
            self._abort_sweep()
            self.asks.ask(lambda number: records.Scan(number, -1))

    def fail(self, error: Exception) -> None:
        """The index cannot be kept true any more: it refuses to answer."""
        self.failure = error
        self.asks.end(error)
        self.ready.set()
        with self._swept:
            self._swept.notify_all()

    def _note(self, error: str) -> None:
        self.last_error = error

    def _on_ended(self, reason: str) -> None:
        logger.warning("nixl_index: the scout is replaced, and everything listed again: %s", reason)
        self._note(f"the scout: {reason}")
        self.losses += 1
        self._dirty = True
        self._abort_sweep()

    # --- what is where ---

    def _on_directory(self, told: records.Directory) -> None:
        base = self.bases[told.base]
        if told.directory < len(self.places):
            if self._parts[told.directory] != told.parts or self.places[told.directory].base != told.base:
                raise WireError(f"directory {told.directory} changed its meaning")
            return
        path = "/".join((base.path.rstrip("/"), *told.parts))
        with self.lock:
            if self.order.add_directory(told.base) != told.directory:
                raise WireError(f"directory {told.directory} came out of turn")
            self.places.append(Place(told.base, base.path, path, self._layout.key_prefix(told.parts)))
            self._parts.append(told.parts)

    def _on_base(self, told: records.BaseState) -> None:
        base = self.bases[told.base]
        base.path, base.device, base.inode = told.path, told.device, told.inode
        if base.frozen != told.frozen:
            base.frozen = told.frozen
            with self.lock:
                (self.order.freeze if told.frozen else self.order.thaw)(told.base)
            if told.frozen:
                self._note(f"{told.path}: {told.frozen}")
                logger.warning(
                    "nixl_index: base dir %r is frozen, nothing of it is evicted: %s", told.path, told.frozen
                )
            else:
                logger.warning("nixl_index: base dir %r is back", told.path)

    def _on_shards(self, found: records.Shards) -> None:
        mending = found.origin in _MENDING
        upsert, split = self.order.upsert, self._split
        changed = (Change.NEW, Change.REWRITTEN)
        rows = zip(found.directories, _text(found.names), found.mtimes, found.sizes, strict=True)
        for chunk in _chunks(rows):
            with self.lock:
                for directory, name, mtime, size in chunk:
                    parsed = split(name)
                    if parsed is None:
                        self._on_ignored(name)
                        continue
                    key, tail = parsed
                    change = upsert(self.places[directory].prefix + key, tail, directory, mtime, size)
                    if mending and change in changed:
                        self.mended += 1

    def _on_gone(self, gone: records.Gone) -> None:
        rows = zip(gone.directories, _text(gone.names), strict=True)
        for chunk in _chunks(rows):
            with self.lock:
                for directory, name in chunk:
                    parsed = self._split(name)
                    if parsed is not None:
                        key, tail = parsed
                        known = self.order.discard(self.places[directory].prefix + key, tail, directory)
                        if known and gone.origin == Origin.LOOK and directory in self._mending:
                            self.mended += 1

    def _on_ignored(self, name: str) -> None:
        if isinstance(self._scheme, KeyScheme) and self._scheme.foreign(name):
            self.foreign += 1
        else:
            self.ignored += 1

    def _on_scheme_error(self, error: Exception) -> None:
        if not self._scheme_failed:
            self._scheme_failed = True
            logger.error("nixl_index: the key scheme failed, such names are ignored: %r", error)
        self._note(f"the key scheme: {error!r}")

    # --- losses and listings ---

    def _on_lost(self, lost: records.Lost) -> None:
        self.losses += 1
        self.overflows += lost.reason == records.OVERFLOW
        self._dirty = True
        self._note(lost.reason)
        logger.warning("nixl_index: events were lost, everything is listed again: %s", lost.reason)

    def _on_crawled(self, _crawled: records.Crawled) -> None:
        first = not self.ready.is_set()
        if first:
            with self.lock:
                self.order.open()
        else:
            self.reconciles += 1
        self._dirty = False
        if not self._sweep and not self._suspects:
            self._finish_sweep(self._sweeps_due)
        if not self.dirty:
            self._faults = 0
        self.ready.set()

    def _on_status(self, status: records.Status) -> None:
        self.status = status
        if status.last_error:
            self._note(status.last_error)

    def _on_fault(self, fault: records.Fault) -> None:
        self._note(fault.message)
        logger.error("nixl_index: the scout failed: %s", fault.message)

    def _on_listing(self, listing: records.Listing) -> None:
        if listing.phase == Phase.BEGIN:
            with self.lock:
                self.order.begin_listing(listing.directory)
            self._suspects.pop(listing.directory, None)
        elif listing.phase == Phase.DONE:
            self.listed.add(listing.directory)
            if listing.origin != Origin.SCAN:
                self._suspects[listing.directory] = listing.origin in _MENDING

    # --- sweeps: what the listings did not see ---

    def _on_sweep(self, _sweep: records.Sweep) -> None:
        self._sweeps_due += 1
        if not self._sweep:
            self._begin_sweep()

    def _begin_sweep(self) -> None:
        suspects, self._suspects = self._suspects, {}
        if not suspects:
            self._finish_sweep(self._sweeps_due)
            return
        self._mending = {directory for directory, mending in suspects.items() if mending}
        self._sweep = self._sweep_steps(suspects, self._sweeps_due)
        self._post()

    def _step(self) -> None:
        """One step of the sweep. It posts the next one itself, unless it waits for the scout's look."""
        if self._sweep and next(self._sweep, False):
            self._post()

    def _sweep_steps(self, suspects: dict[int, bool], due: int) -> Iterator[bool]:
        """Have the scout look at each shard that the last listing of its directory did not see. Nothing is dropped on
        suspicion. Yields False where it waits for the scout, which then posts the next step."""
        directories: list[int] = []
        names: list[bytes] = []
        with self.lock:
            keys = iter(list(self.order.keys()))
        while chunk := list(islice(keys, _CHUNK_RECORDS)):
            with self.lock:
                for key in chunk:
                    for directory, tail in self.order.unseen(key, suspects):
                        directories.append(directory)
                        prefix = self.places[directory].prefix
                        names.append(os.fsencode(tail[1:] if tail[:1] == "/" else key[len(prefix) :] + tail))
            if len(names) >= _LOOK_NAMES:
                self._look(directories, names)
                directories, names = [], []
                yield False
            else:
                yield True
        if names:
            self._look(directories, names)
            yield False
        self._sweep = None
        self._mending = set()
        self._finish_sweep(due)
        if self._sweeps_done < self._sweeps_due:
            self._begin_sweep()

    def _look(self, directories: list[int], names: list[bytes]) -> None:
        self.asks.ask(lambda number: records.Look(number, directories, names), lambda _done: self._post())

    def _finish_sweep(self, due: int) -> None:
        with self._swept:
            self._sweeps_done = due
            self._swept.notify_all()

    def _abort_sweep(self) -> None:
        """The listings that it rests on are void; those that follow have a sweep of their own."""
        self._sweep = None
        self._suspects = {}

    def wait_swept(self, until: float | None) -> bool:
        """Wait until the sweeps that are due now are done. False after `until`, in seconds of `time.monotonic`."""
        due = self._sweeps_due
        with self._swept:
            return self._swept.wait_for(
                lambda: self._sweeps_done >= due or self.failure is not None,
                None if until is None else max(0.0, until - time.monotonic()),
            )


def _text(names: Sequence[bytes]) -> list[str]:
    """File names as strings; three C calls for a whole batch."""
    return os.fsdecode(b"\0".join(names)).split("\0")


Row = TypeVar("Row")


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """The rows in short runs. Every millisecond or so the GIL is let go between two."""
    until = time.perf_counter() + CHUNK_SECONDS
    while chunk := list(islice(rows, _CHUNK_RECORDS)):
        yield chunk
        if time.perf_counter() > until:
            time.sleep(0)
            until = time.perf_counter() + CHUNK_SECONDS
