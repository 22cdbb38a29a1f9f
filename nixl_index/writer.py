"""Applies what the stream tells of shards to the order. Runs on the observer's thread alone: there is one writer."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from nixl_index import records
from nixl_index.group import Place
from nixl_index.keys import KeyScheme, split_by
from nixl_index.logs import EventLog
from nixl_index.missed import Missed
from nixl_index.order import Change, GroupOrder
from nixl_index.quarantine import Quarantine
from nixl_index.records import Origin
from nixl_index.sweep import MENDING

logger = logging.getLogger(__name__)

CHUNK_SECONDS = 0.0015
"""After so long the writer lets the GIL go, so that no thread of the host waits long for it. Beside one that never
rests it gets it back after 5 ms: this is the share of the host that a scan takes (`tests/bench/scan.py`)."""
_CHUNK_RECORDS = 64
"""So many are applied under one hold of the lock."""


class ShardWriter:
    """`lock` guards the order: held for a short run of records at a time, never for a call of the key scheme."""

    def __init__(
        self,
        lock: threading.Lock,
        order: GroupOrder,
        places: Sequence[Place],
        scheme: Callable[[str], str | None],
        reads: bool,
        clock: Callable[[], int],
        log: EventLog,
    ) -> None:
        self.missed = Missed()
        self.quarantine = Quarantine(order)
        self.in_flight: set[str] = set()
        """Keys of groups whose eviction was asked for and is not answered."""
        self.mending: set[int] = set()
        """Directories of which a suspect that is gone was missed by the events."""
        self.events = self.ignored = self.foreign = 0
        self.scheme_error = ""
        self._lock = lock
        self._order = order
        self._places = places
        self._scheme = scheme
        self._split = split_by(scheme, self._on_scheme_error)
        self._reads = reads
        self._read: set[str] = set()
        self._clock = clock
        self._log = log

    def on_shards(self, found: records.Shards) -> None:
        """These shards are. O(records * log n)."""
        split, places = self._split, self._places
        self.events += len(found.names) if found.origin == Origin.EVENT else 0
        rows = zip(_text(found.names), found.directories, found.mtimes, found.sizes, strict=True)
        for chunk in _chunks(rows):
            watchful = self._is_watchful(found.origin)
            shards = []
            for name, directory, mtime, size in chunk:
                parsed = split(name)
                if parsed is None:
                    self._on_ignored(name)
                else:
                    shards.append((places[directory].prefix + parsed[0], parsed[1], directory, mtime, size))
            with self._lock:
                changes = self._order.upsert_all(shards)
                if watchful:
                    for (key, tail, directory, _, _), change in zip(shards, changes, strict=True):
                        self._on_change(found.origin, key, directory, places[directory].name_of(key, tail), change)
        keys, self._read = self._read, set()
        self._touch(keys)

    def _is_watchful(self, origin: int) -> bool:
        """Does anything but the order have to know of a change that comes for this reason?"""
        if origin == Origin.EVENT:
            return bool(self._reads or self.quarantine or self.missed.waiting)
        return bool(origin in MENDING or self.quarantine)

    def _on_change(self, origin: int, key: str, directory: int, name: str, change: Change) -> None:
        if change in (Change.NEW, Change.REWRITTEN) and key not in self.in_flight:
            self.quarantine.forget(key)  # that it is told anew after a failed unlink is no change
        if origin in MENDING:
            if change == Change.SETTLED:
                self.missed.settled((directory, name))
            elif change:
                self.missed.found((directory, name), "missing" if change == Change.NEW else "rewritten")
        elif origin == Origin.EVENT:
            self.missed.told((directory, name))
            if self._reads and not change:
                self._read.add(key)  # opened for writing, and nothing was written

    def on_gone(self, gone: records.Gone) -> None:
        """These names are no shards. O(records * log n)."""
        self.events += len(gone.names) if gone.origin == Origin.EVENT else 0
        rows = zip(gone.directories, _text(gone.names), strict=True)
        for chunk in _chunks(rows):
            keys_of = [self._split(row[1]) for row in chunk]
            with self._lock, self._order.batch():
                for (directory, name), parsed in zip(chunk, keys_of, strict=True):
                    if parsed is None:
                        continue
                    key = self._places[directory].prefix + parsed[0]
                    known = self._order.discard(key, parsed[1], directory)
                    if self.quarantine and key not in self._order and key not in self.in_flight:
                        self.quarantine.forget(key)
                    if gone.origin == Origin.EVENT:
                        self.missed.told((directory, name))
                    elif known and directory in self.mending:
                        self.missed.found((directory, name), "extra")

    def on_reads(self, read: records.Reads) -> None:
        """These names were read. O(groups * log n)."""
        keys = set()
        for chunk in _chunks(zip(read.directories, _text(read.names), strict=True)):
            for directory, name in chunk:
                parsed = self._split(name)
                if parsed is not None:
                    keys.add(self._places[directory].prefix + parsed[0])
        self._touch(keys)

    def _touch(self, keys: set[str]) -> None:
        """These groups were read just now: one move each, however many of their shards were."""
        now = self._clock()
        for some in _chunks(iter(keys)):
            with self._lock:
                for key in some:
                    self._order.touch(key, now)

    def _on_ignored(self, name: str) -> None:
        if isinstance(self._scheme, KeyScheme) and self._scheme.foreign(name):
            self.foreign += 1
        else:
            self.ignored += 1

    def _on_scheme_error(self, error: Exception) -> None:
        text = f"the key scheme failed, such names are ignored: {error!r}"
        self._log.say(logger, "key_scheme_failed", text)
        self.scheme_error = f"the key scheme: {error!r}"


def _text(names: Sequence[bytes]) -> list[str]:
    """File names as strings; three C calls for a whole batch."""
    return os.fsdecode(b"\0".join(names)).split("\0")


Row = TypeVar("Row")


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """The rows in short runs. Every now and then the GIL is let go between two."""
    until = time.perf_counter() + CHUNK_SECONDS
    while chunk := list(islice(rows, _CHUNK_RECORDS)):
        yield chunk
        if time.perf_counter() > until:
            time.sleep(0)
            until = time.perf_counter() + CHUNK_SECONDS
