"""Follows the stream, in order, on the observer's thread: what the scout tells of the world, but for the shards."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from watchdog.events import FileSystemEvent, FileSystemEventHandler

from nixl_index import records, wire
from nixl_index.asks import Asks, Source
from nixl_index.bases import BaseView
from nixl_index.errors import FailedError, WireError
from nixl_index.events import Fault, Frames, ScoutEnded, ScoutStarted, Turn
from nixl_index.flow import Flow
from nixl_index.group import Group, Place
from nixl_index.layout import Layout
from nixl_index.logs import EventLog
from nixl_index.order import GroupOrder
from nixl_index.packed import Popped
from nixl_index.progress import FirstScan, OnProgress
from nixl_index.records import Message, Origin, Phase
from nixl_index.sweep import Sweeper
from nixl_index.writer import ShardWriter

logger = logging.getLogger(__name__)

_MAX_FAULTS = 3


class Follower(FileSystemEventHandler):
    """Takes the stream, and keeps a `GroupOrder` true by it. `lock` guards the order: hold it for O(log n) work, never
    for I/O, logging or a callback. There is no other lock that is held while this one is taken."""

    def __init__(
        self,
        paths: Sequence[str],
        scheme: Callable[[str], str | None],
        layout: Layout,
        intervals: tuple[float, float],
        reads: bool,
        source: Source,
        clock: Callable[[], int] = time.time_ns,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.log = EventLog(os.pathsep.join(paths))
        self.order = GroupOrder(clock)
        self.places: list[Place] = []
        self.bases = [BaseView(path, intervals[0], self.log) for path in paths]
        self.asks = Asks(source)
        self.ready = threading.Event()
        self.failure: Exception | None = None
        self.losses = self.overflows = self.reconciles = 0
        self.evicted_groups = self.freed_bytes = 0
        self.writer = ShardWriter(self.lock, self.order, self.places, scheme, reads, clock, self.log)
        self.listed: set[int] = set()
        self.flow = Flow(self.order.totals)
        self._first_scan = FirstScan(on_progress, self.log, self.order.totals, self.places, self.bases, layout.depth)
        self.status = records.Status(0, 0, [], 0, 0, "")
        self._last_error = ""
        self._parts: list[list[str]] = []
        self._layout = layout
        self._intervals = intervals
        self._reads = reads
        self._source = source
        self._dirty = True
        self._began = time.monotonic()
        self._deaf = False
        self._faults = 0
        self.sweeper = Sweeper(self.lock, self.order, self.places, self.writer.mending, self._look, source.post)
        self._handlers: dict[type[Message], Callable[..., None]] = {
            records.Shards: self.flow.counted(self.writer.on_shards),
            records.Gone: self.flow.counted(self.writer.on_gone),
            records.Reads: self.writer.on_reads,
            records.Directory: self._on_directory,
            records.Listing: self._on_listing,
            records.BaseState: self._on_base,
            records.Sweep: lambda sweep: self.sweeper.on_sweep(),
            records.Lost: self._on_lost,
            records.Crawled: self._on_crawled,
            records.Status: self._on_status,
            records.Fault: self._on_fault,
            **dict.fromkeys((records.Done, records.Evicted, records.Measured, records.Locked), self.asks.answer),
            records.Hello: lambda _: None,  # it is for the emitter
        }

    def configure(self) -> records.Config:
        """What a new scout has to know."""
        places = zip(self.places, self._parts, strict=True)
        return records.Config(
            records.VERSION,
            [[records.text_of(os.fsencode(base.path)), base.device, base.inode, 0.0] for base in self.bases],
            self._layout.pattern,
            [[number, place.base, parts] for number, (place, parts) in enumerate(places)],
            *self._intervals,
            int(self._reads),
        )

    @property
    def dirty(self) -> bool:
        """Does the index wait for a first scan or a reconcile?"""
        return self._dirty or self.sweeper.pending

    # --- events ---

    def dispatch(self, event: FileSystemEvent) -> None:
        """Apply one piece of the stream. After an exception of ours nothing of it is believed before another scout
        tells everything anew; if that does not help, the index fails: every call that would lie raises."""
        if self.failure or (self._deaf and not isinstance(event, ScoutStarted)):
            return
        try:
            if isinstance(event, Frames):
                self.writer.missed.settle()
                self.log.flush()  # the emitter sees to it that some come every second
                for kind, payload in event.frames:
                    message = wire.decode(kind, payload)
                    self._handlers[type(message)](message)
                self._first_scan.report()
            elif isinstance(event, Turn):
                self.sweeper.step()
                self._check_whole()
            elif isinstance(event, ScoutStarted):
                self._deaf = False
                self.asks.resend()
            elif isinstance(event, ScoutEnded):
                self._on_ended(event.reason)
            elif isinstance(event, Fault):
                self._on_error(event.error)
        except Exception as error:  # noqa: BLE001 - another scout tells everything anew
            text = f"applying the stream failed, the scout is replaced: {error!r}"
            self.log.say(logger, "stream_failed", text, error=error)
            self._on_error(error)

    def _on_error(self, error: BaseException) -> None:
        self._note(f"{type(error).__name__}: {error}")
        self._faults += 1
        self._dirty = True
        if self._faults > _MAX_FAULTS:
            text = f"applying the stream failed {self._faults} times in a row, last with {error!r}"
            self.fail(FailedError(text))
            self.log.say(logger, "index_failed", f"the index refuses to answer from now on: {text}")
        else:
            self._deaf = True
            self.losses += 1
            self.sweeper.abort()
            self._source.replace(f"applying its stream failed: {error!r}")

    def _check_whole(self) -> None:
        """Is the index whole again? Then what failed before does not count against what fails next."""
        if not self.dirty:
            self._faults = 0
            self._source.healthy()

    def fail(self, error: Exception) -> None:
        """The index cannot be kept true any more: it refuses to answer."""
        self.failure = error
        self.asks.end(error)
        self.ready.set()
        self.sweeper.end()

    @property
    def last_error(self) -> str:
        """What went wrong last, of all that is known here."""
        return self._last_error or self.writer.scheme_error

    def _note(self, error: str) -> None:
        self._last_error = error

    def _on_ended(self, reason: str) -> None:
        text = f"the scout is replaced, and everything listed again: {reason}"
        self.log.say(logger, "scout_replaced", text)
        self._note(f"the scout: {reason}")
        self.losses += 1
        self._dirty = True
        self.sweeper.abort()
        self._first_scan.restart()

    # --- what is where ---

    def _on_directory(self, told: records.Directory) -> None:
        base = self.bases[told.base]
        if told.directory < len(self.places):
            if self._parts[told.directory] != told.parts or self.places[told.directory].base != told.base:
                raise WireError(f"directory {told.directory} changed its meaning")
            return
        if told.directory > len(self.places):
            raise WireError(f"directory {told.directory} came out of turn")
        parts = [os.fsdecode(records.bytes_of(part)) for part in told.parts]
        path = "/".join((base.path.rstrip("/"), *parts))
        with self.lock:
            self.order.add_directory(told.base)
            self.places.append(Place(told.base, base.path, path, self._layout.key_prefix(parts)))
            self._parts.append(told.parts)

    def _on_base(self, told: records.BaseState) -> None:
        base = self.bases[told.base]
        if bool(base.frozen) != bool(told.frozen):
            with self.lock:
                (self.order.freeze if told.frozen else self.order.thaw)(told.base)
        base.update(told)
        if told.frozen:
            self._note(f"{base.path}: {told.frozen}")

    # --- losses and listings ---

    def _on_lost(self, lost: records.Lost) -> None:
        self.losses += 1
        self.overflows += lost.reason == records.OVERFLOW
        self._dirty = True
        self._note(lost.reason)
        self._first_scan.restart()
        event = "overflow" if lost.reason == records.OVERFLOW else "lost"
        text = f"events were lost, everything is listed again: {lost.reason}"
        self.log.say(logger, event, text, subject=lost.reason, losses=self.losses)

    def _on_crawled(self, _crawled: records.Crawled) -> None:
        first = not self.ready.is_set()
        totals = self.order.totals
        if first:
            with self.lock:
                self.order.open()
            self._first_scan.report(done=True)
            text = f"the first scan is over: {len(self.order)} groups, {totals.count} shards, {totals.size} bytes"
            self.log.say(logger, "ready", text, seconds=round(time.monotonic() - self._began, 3))
        else:
            self.reconciles += 1
            text = f"everything was listed again: {len(self.order)} groups, {totals.count} shards"
            self.log.say(logger, "reconciled", text, reconciles=self.reconciles)
        self._dirty = False
        self.sweeper.on_crawled()
        self.ready.set()
        self._check_whole()

    def _on_status(self, status: records.Status) -> None:
        before, self.status = self.status, status
        if status.doubtful:
            text = f"directories that could not be looked at whole are listed again soon: {status.last_error}"
            self.log.say(logger, "doubtful", text, lasts=True)
        elif before.doubtful:
            self.log.over("doubtful")
        for reason in status.watch_errors:
            text = f"directories that cannot be watched are listed every {self._intervals[0]:.0f} s instead: {reason}"
            self.log.say(logger, "unwatched", text, subject=reason, lasts=True)
        if before.unwatched and not status.unwatched:
            self.log.over("unwatched")
            self.log.say(logger, "watched", "every directory is watched again")
        if status.last_error:
            self._note(status.last_error)

    def _on_fault(self, fault: records.Fault) -> None:
        self._note(fault.message)
        self.log.say(logger, "scout_failed", f"the scout failed: {fault.message.strip()}")

    def _on_listing(self, listing: records.Listing) -> None:
        self._first_scan.on_listing(listing)
        if listing.phase == Phase.DONE:
            self.listed.add(listing.directory)
            if listing.origin == Origin.EVENT:
                self.writer.missed.told_all(listing.directory)
                self.writer.mending.discard(listing.directory)
        self.sweeper.on_listing(listing)

    def group(self, popped: Popped) -> Group:
        """What callers are handed."""
        return Group(popped.key, popped.recency_ns, popped.packed, self.places, self.order.packing)

    def look_at(self, popped: Popped) -> None:
        """Have the scout tell what each shard of a group is now. Does not wait."""
        rows = self.group(popped).rows
        self._look([row[0] for row in rows], [os.fsencode(row[1]) for row in rows], lambda: None)

    def _look(self, directories: list[int], names: list[bytes], done: Callable[[], None]) -> None:
        self.asks.ask(lambda number: records.Look(number, directories, names), lambda _done: done())
