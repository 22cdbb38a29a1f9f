"""Eviction: take the oldest groups, have the scout verify and unlink them, and account for what came of it."""

from __future__ import annotations

import logging
import os
from errno import EMFILE, ENFILE, ENOMEM
from time import monotonic
from typing import cast

from nixl_index import records
from nixl_index.budget import Budget, BytesBudget, CountBudget, KeyBudget
from nixl_index.follower import Follower
from nixl_index.index import GroupIndex
from nixl_index.keys import KeyScheme
from nixl_index.notifier import Callback, call_back
from nixl_index.packed import Packing, Popped
from nixl_index.recency import Rank
from nixl_index.records import Outcome
from nixl_index.results import EvictedGroup, Eviction, SkippedGroup, Tally

logger = logging.getLogger(__name__)

BATCH_GROUPS = 64
"""How many groups one command carries, and how many are looked at under one hold of the lock."""
_BATCH_SHARDS = 4_000


class _Call:
    """One call of `evict`: what came of it so far, and the groups that it left alone, which it must not meet again."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.held: list[str] = []
        self.over = False
        self.exhausted = False
        """The scout lacks descriptors or memory: there is no use in going on, and no group is to blame."""


class Evictor:
    """Evicts groups of an index, oldest first, each one whole. Its methods block until the scout has answered.

    What is unlinked was verified by the scout right before: the same directories, by (device, inode), and every shard
    of the group with the mtime that it was indexed with. A group that was rewritten is left alone, and the next has
    its turn; one that cannot be unlinked goes into quarantine, for 1 minute at first and at most 1 hour.

    `on_evict` is called with each `EvictedGroup` after it is gone, in order, on the thread that evicts, without a lock;
    if it raises, that is logged. With `dry_run=True` the same decisions are made, and nothing is unlinked.
    """

    def __init__(self, index: GroupIndex, *, on_evict: Callback | None = None, dry_run: bool = False) -> None:
        if not isinstance(index, GroupIndex):
            raise TypeError(f"an Evictor needs a GroupIndex, not {index!r}")
        self._index = index
        self._on_evict = on_evict
        self._dry_run = dry_run

    def evict_oldest(self, n: int = 1, timeout: float | None = 60.0) -> Eviction:
        """Evict the `n` oldest groups; fewer where there are no more. Raises ValueError or TypeError for an `n` that
        makes no sense, TimeoutError where the scout does not answer within `timeout` seconds (what it was told to do
        may still happen then, and the index will know)."""
        return self.evict(CountBudget(_count("n", n)), timeout)

    def evict_bytes(self, n: int, timeout: float | None = 60.0) -> Eviction:
        """Evict the oldest groups until their indexed disk bytes come to `n`; the last one may go beyond. What the file
        system makes of it does not matter: where links or snapshots keep the space, no more is evicted for it. Raises
        as `evict_oldest`."""
        return self.evict(BytesBudget(_count("n", n)), timeout)

    def clear(self, model: str | None = None, timeout: float | None = None) -> Eviction:
        """Evict every group of one model, named as the server knows it (`org/name`), or all groups of the index; never
        a file that is not in the index. Raises ValueError for an empty name, TimeoutError as `evict_oldest`."""
        if model is None:
            return self.evict(KeyBudget(lambda key: True), timeout)
        scheme = KeyScheme(models=[model])
        return self.evict(KeyBudget(lambda key: scheme(key.rpartition("/")[2]) == key.rpartition("/")[2]), timeout)

    def evict(self, budget: Budget, timeout: float | None = 60.0) -> Eviction:
        """Evict what a budget wants. O(groups that it is asked about). Raises TimeoutError as `evict_oldest`."""
        until = None if timeout is None else monotonic() + timeout
        follower = self._index._eviction_side()
        call = _Call()
        cursor: Rank | None = None
        try:
            while budget.open:
                batch, cursor, more = self._take(follower, budget, cursor)
                if batch and self._dry_run:
                    call.tally.evicted += [_as_evicted(popped) for popped in batch]
                elif batch:
                    self._have_unlinked(follower, batch, budget, call, until)
                if not more or call.exhausted:
                    break
        finally:
            with follower.lock:
                call.over = True
                for key in call.held:
                    follower.order.release(key)
        return call.tally.result()

    def _take(self, follower: Follower, budget: Budget, cursor: Rank | None) -> tuple[list[Popped], Rank | None, bool]:
        """Take the next groups that the budget wants out of the order: their keys are in flight, and held. Returns
        them, the place where to go on, and whether there is more behind it."""
        batch: list[Popped] = []
        shards = 0
        with follower.lock:
            follower.writer.quarantine.release_due()
            looked_at = follower.order.after(cursor, BATCH_GROUPS)
            for seen in looked_at:
                if not budget.open or shards >= _BATCH_SHARDS:
                    return batch, cursor, True
                cursor = (seen.recency_ns, seen.key)
                if not budget.wants(seen):
                    continue
                popped = seen if self._dry_run else follower.order.pop(seen.key)
                if popped is None:
                    continue
                if not self._dry_run:
                    follower.order.hold(popped.key)
                    follower.writer.in_flight.add(popped.key)
                budget.spend(popped)
                batch.append(popped)
                shards += Packing.count(popped.packed)
        return batch, cursor, len(looked_at) == BATCH_GROUPS

    def _have_unlinked(
        self, follower: Follower, batch: list[Popped], budget: Budget, call: _Call, until: float | None
    ) -> None:
        lengths, directories, mtimes, names = [], [], [], []
        for popped in batch:
            rows = follower.group(popped).rows
            lengths.append(len(rows))
            for directory, name, mtime, _size in rows:
                directories.append(directory)
                mtimes.append(mtime)
                names.append(os.fsencode(name))
        evicted, left = len(call.tally.evicted), list[tuple[Popped, int]]()
        follower.asks.ask(
            lambda number: records.Evict(number, lengths, directories, mtimes, names),
            lambda answer: left.extend(_settle(follower, batch, cast("records.Evicted", answer), call)),
        ).wait(until, "evict")
        for popped, unlinked in left:
            budget.refund(popped, unlinked)
        if self._on_evict:
            for group in call.tally.evicted[evicted:]:
                call_back(self._on_evict, group, follower.log)


def _settle(follower: Follower, batch: list[Popped], answer: records.Evicted, call: _Call) -> list[tuple[Popped, int]]:
    """Take the scout's answer over, on the observer's thread: the groups are no longer in flight.

    What was not evicted goes back as it was known, with its recency, and the scout looks at each of its shards again.
    It stays held, by the quarantine or until the call is over. Returns it, with how many shards were unlinked of it.
    """
    tally, left = call.tally, list[tuple[Popped, int]]()
    failures = len(tally.failed)
    rows = zip(batch, answer.outcomes, answer.unlinked, answer.freed, answer.errnos, strict=True)
    with follower.lock:
        for popped, outcome, unlinked, freed, errno in rows:
            key = popped.key
            tally.disk_bytes += freed
            follower.writer.in_flight.discard(key)
            if outcome == Outcome.EVICTED:
                tally.evicted.append(EvictedGroup(key, unlinked, freed))
                follower.writer.quarantine.forget(key)
            else:
                left.append((popped, unlinked))
                follower.order.restore(popped)
            if errno in _LACKING:
                call.exhausted = True
                tally.skipped.append(SkippedGroup(key, os.strerror(errno)))
            elif outcome == Outcome.FAILED:
                tally.failed.append(SkippedGroup(key, os.strerror(errno)))
                follower.writer.quarantine.add(key)
            if outcome in _REASONS:
                tally.skipped.append(SkippedGroup(key, _REASONS[Outcome(outcome)]))
                if not call.over:
                    call.held.append(key)
                    continue
            follower.order.release(key)
    follower.evicted_groups += len(batch) - len(left)
    follower.freed_bytes += sum(answer.freed)
    for popped, _ in left:
        follower.look_at(popped)
    for failed in tally.failed[failures:]:
        text = f"a group that cannot be unlinked goes into quarantine: {failed.key!r}, {failed.reason}"
        follower.log.say(logger, "quarantine", text, subject=failed.reason)
    return left


_LACKING = (EMFILE, ENFILE, ENOMEM)
_REASONS = {
    Outcome.REWRITTEN: "rewritten since it was indexed",
    Outcome.FROZEN: "not provably in the directories that were indexed",
}


def _as_evicted(popped: Popped) -> EvictedGroup:
    return EvictedGroup(popped.key, Packing.count(popped.packed), Packing.sum_bytes(popped.packed))


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: give a whole number")
    if value < 0:
        raise ValueError(f"{name} is {value!r}: give a number from 0")
    return value
