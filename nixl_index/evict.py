"""Eviction: pop the oldest groups, have the scout verify and unlink them, and account for what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import cast

from nixl_index import records
from nixl_index.follower import Follower
from nixl_index.index import GroupIndex
from nixl_index.packed import Popped
from nixl_index.records import Outcome

BATCH_GROUPS = 64
"""How many groups one command carries."""
_BATCH_SHARDS = 4_000


@dataclass(frozen=True, slots=True)
class EvictedGroup:
    """A group that is gone from the disk: how many files were unlinked, and the disk bytes that this freed. (A file
    that was gone already, or that has another link, frees nothing.)"""

    key: str
    shards: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class SkippedGroup:
    """A group that was left alone, whole or in part, and why. It is in the index as the disk has it."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """What came of a call. `disk_bytes` counts what unlinks freed, those of failed groups included."""

    evicted: tuple[EvictedGroup, ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()
    """Rewritten since they were popped, or on a base that is frozen."""
    failed: tuple[SkippedGroup, ...] = ()
    """Not all files could be unlinked: kept from eviction until they change."""
    disk_bytes: int = 0

    def __bool__(self) -> bool:
        """Was anything evicted?"""
        return bool(self.evicted)


@dataclass(slots=True)
class _Tally:
    """An `Eviction` in the making. `held` are the keys that this call must not pop again."""

    evicted: list[EvictedGroup] = field(default_factory=list)
    skipped: list[SkippedGroup] = field(default_factory=list)
    failed: list[SkippedGroup] = field(default_factory=list)
    disk_bytes: int = 0
    evicted_bytes: int = 0
    held: list[str] = field(default_factory=list)

    def result(self) -> Eviction:
        return Eviction(tuple(self.evicted), tuple(self.skipped), tuple(self.failed), self.disk_bytes)


class Evictor:
    """Evicts groups of an index, oldest first, each one whole. Its methods block until the scout has answered.

    What is unlinked was verified by the scout right before: the same directories, by (device, inode), and every shard
    of the group with the mtime that it was indexed with. A group that was rewritten is left alone, and the next has
    its turn.
    """

    def __init__(self, index: GroupIndex) -> None:
        if not isinstance(index, GroupIndex):
            raise TypeError(f"an Evictor needs a GroupIndex, not {index!r}")
        self._index = index

    def evict_oldest(self, n: int = 1, timeout: float | None = 60.0) -> Eviction:
        """Evict the `n` oldest groups; fewer where there are no more. Raises ValueError or TypeError for an `n` that
        makes no sense, TimeoutError where the scout does not answer within `timeout` seconds (what it was told to do
        may still happen then, and the index will know)."""
        _check_count("n", n)
        return self._evict(lambda tally: n - len(tally.evicted), lambda tally: float("inf"), timeout)

    def evict_bytes(self, n: int, timeout: float | None = 60.0) -> Eviction:
        """Evict the oldest groups until their indexed disk bytes come to `n`; the last one may go beyond. What the file
        system makes of it does not matter: where links or snapshots keep the space, no more is evicted for it. Raises
        as `evict_oldest`."""
        _check_count("n", n)
        return self._evict(lambda tally: BATCH_GROUPS, lambda tally: n - tally.evicted_bytes, timeout)

    def _evict(
        self, groups_due: Callable[[_Tally], int], bytes_due: Callable[[_Tally], float], timeout: float | None
    ) -> Eviction:
        until = None if timeout is None else monotonic() + timeout
        follower = self._index._eviction_side()
        tally = _Tally()
        try:
            while groups_due(tally) > 0 and bytes_due(tally) > 0:
                batch = self._take(follower, min(BATCH_GROUPS, groups_due(tally)), bytes_due(tally))
                if not batch:
                    break
                self._have_unlinked(follower, batch, tally, until)
        finally:
            with follower.lock:
                for key in tally.held:
                    follower.order.release(key)
        return tally.result()

    def _take(self, follower: Follower, groups: int, disk_bytes: float) -> list[Popped]:
        """Pop the oldest groups, up to so many and up to so many bytes. Their keys are in flight: held."""
        batch: list[Popped] = []
        shards = 0
        packing = follower.order.packing
        with follower.lock:
            while len(batch) < groups and disk_bytes > 0 and shards < _BATCH_SHARDS:
                popped = follower.order.pop_oldest()
                if popped is None:
                    break
                follower.order.hold(popped.key)
                batch.append(popped)
                shards += packing.count(popped.packed)
                disk_bytes -= packing.sum_bytes(popped.packed)
        return batch

    def _have_unlinked(self, follower: Follower, batch: list[Popped], tally: _Tally, until: float | None) -> None:
        lengths, directories, mtimes, names = [], [], [], []
        for popped in batch:
            rows = follower.group(popped).rows
            lengths.append(len(rows))
            for directory, name, mtime, _size in rows:
                directories.append(directory)
                mtimes.append(mtime)
                names.append(os.fsencode(name))
        follower.asks.ask(
            lambda number: records.Evict(number, lengths, directories, mtimes, names),
            lambda answer: _settle(follower, batch, cast("records.Evicted", answer), tally),
        ).wait(until, "evict")


def _settle(follower: Follower, batch: list[Popped], answer: records.Evicted, tally: _Tally) -> None:
    """Take the scout's answer over, on the observer's thread: the groups are no longer in flight.

    What was not evicted goes back as it was known, with its recency, and the scout looks at each of its shards again.
    """
    order = follower.order
    left: list[Popped] = []
    rows = zip(batch, answer.outcomes, answer.unlinked, answer.freed, answer.errnos, strict=True)
    with follower.lock:
        for popped, outcome, unlinked, freed, errno in rows:
            key = popped.key
            tally.disk_bytes += freed
            if outcome == Outcome.EVICTED:
                tally.evicted.append(EvictedGroup(key, unlinked, freed))
                tally.evicted_bytes += order.packing.sum_bytes(popped.packed)
                order.release(key)
                continue
            order.restore(popped)
            left.append(popped)
            if outcome == Outcome.FAILED:
                tally.failed.append(SkippedGroup(key, os.strerror(errno)))
                follower.quarantined.add(key)  # its hold stays
            else:
                tally.skipped.append(SkippedGroup(key, _REASONS[Outcome(outcome)]))
                tally.held.append(key)
    for popped in left:
        follower.look_at(popped)


_REASONS = {
    Outcome.REWRITTEN: "rewritten since it was indexed",
    Outcome.FROZEN: "not provably in the directories that were indexed",
}


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: give a whole number")
    if value < 0:
        raise ValueError(f"{name} is {value!r}: give a number from 0")
