"""The ordered core of the index: which groups there are, and which is the oldest. No lock, no I/O.

Whoever shares a `GroupOrder` between threads brings the lock. In the complexities, n is the number of groups and s the
number of shards of the group in question. Times are in ns since the epoch, sizes in bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, KeysView
from contextlib import contextmanager
from enum import IntEnum
from itertools import islice
from typing import TypeAlias

from nixl_index.packed import MARKS, Packing, Popped
from nixl_index.recency import FirstSeen, Rank, Ranks
from nixl_index.totals import Totals


class Change(IntEnum):
    """What an `upsert` found."""

    UNCHANGED = 0
    NEW = 1
    REWRITTEN = 2
    """The mtime differs, either way."""
    SETTLED = 3
    """The same mtime and other disk bytes: the file system wrote back late. The group does not move."""


Upsert: TypeAlias = tuple[str, str, int, int, int]
"""The arguments of an `upsert`."""


class GroupOrder:
    """Groups of shards, ordered by recency, then by key.

    The recency of a group is the newest mtime of its shards, or a later touch. A touch outlasts shards that come and
    go, until a newer shard overtakes it. An mtime that lies in the future counts as of when it was first seen, for as
    long as the shard stays as it is: else a wrong clock would keep it for ever.

    It starts *loading*: `open()` then sorts once. A group has no place in the order, it is *loose*, while the order is
    loading, while it is held, or when it is *stranded*: all its shards lie on frozen bases. A wholly frozen group is
    stranded only once its turn comes, so that to freeze a base costs nothing.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns, packing: Packing | None = None) -> None:
        self.packing = Packing() if packing is None else packing
        self._clock = clock
        self._ranks = Ranks()
        self._first_seen = FirstSeen(clock, self.packing)
        self.totals = Totals()
        """Shards and disk bytes, of each base and in all: to be read."""
        self._marks = bytearray()
        self._held, self._stranded = self._ranks.held, self._ranks.stranded

    # Directories and listings

    def add_directory(self, base: int) -> int:
        """The id of one more directory, on the base of this number. Ids count up from 0. O(1). Raises OverflowError
        after 16,777,216 directories."""
        directory = self.totals.add_directory(base)
        self._marks.append(0)
        return directory

    def begin_listing(self, directory: int) -> None:
        """From now on what is upserted in this directory counts as seen by a new listing. O(1).

        The listing's number has 8 bits. A shard last seen exactly 256 listings ago looks as if this one had seen it;
        the next listing has another number, so the wrap delays a suspicion and never raises a false one.
        """
        self._marks[directory] = (self._marks[directory] + 1) % MARKS

    def unseen(self, key: str, directories: Container[int]) -> list[tuple[int, str]]:
        """The shards `(directory, tail)` of a group in these directories that the last listing of their directory did
        not see. Suspects only. O(s)."""
        rank = self._ranks.by_key.get(key)
        if rank is None:
            return []
        marks = self._marks
        return [
            (directory, tail)
            for directory, tail, _, _, mark in self.packing.rows(self._ranks.packed(rank))
            if mark != marks[directory] and directory in directories
        ]

    # Shards

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A context in which `upsert` and `discard` may be called, and nothing else: a group that changes several times
        moves once, at the end. O(m log n) for m groups that move."""
        self._ranks.begin()
        try:
            yield
        finally:
            self._ranks.end()

    def upsert(self, key: str, tail: str, directory: int, mtime_ns: int, disk_bytes: int) -> Change:
        """This shard is, with this mtime and these disk bytes. O(s + log n); a group moves only when its recency does.
        Raises IndexError for an unknown directory."""
        rank = self._ranks.by_key.get(key)
        packed = b"" if rank is None else self._ranks.packed(rank)
        fresh, old = self.packing.put(packed, directory, tail, mtime_ns, disk_bytes, self._marks[directory])
        if fresh is packed:
            return Change.UNCHANGED
        if rank is None:
            self.totals.add(directory, disk_bytes)
            effective = self._first_seen.add(key, directory, tail, mtime_ns)
            self._ranks.add(key, effective, fresh)
            return Change.NEW
        recency, key = rank
        if old is None:
            self.totals.add(directory, disk_bytes)
            effective = self._first_seen.add(key, directory, tail, mtime_ns)
            self._ranks.write(rank, max(recency, effective), fresh)
            if key in self._stranded and self.totals.live(directory):
                self._ranks.unstrand((key,))
            return Change.NEW
        self.totals.resize(directory, disk_bytes - old[1])
        if old[0] == mtime_ns:
            self._ranks.write(rank, recency, fresh)
            return Change.UNCHANGED if old[1] == disk_bytes else Change.SETTLED
        previous = self._first_seen.forget(key, directory, tail, old[0])
        effective = self._first_seen.add(key, directory, tail, mtime_ns)
        if effective < previous == recency:
            # The newest shard went back, so no touch stands above it. In every other case another shard, or a touch,
            # keeps the group where it is.
            recency = self._first_seen.newest(key, fresh)
        self._ranks.write(rank, max(recency, effective), fresh)
        return Change.REWRITTEN

    def upsert_all(self, rows: Iterable[Upsert]) -> list[Change]:
        """`upsert` of each, with one move for each group that moves. New shards of groups that are loose, or become it
        by the first of them, take a short cut (`tests/bench/apply.py`)."""
        ranks, marks, append, add = self._ranks, self._marks, self.packing.append, self.totals.add
        by_key, now, may_be_short = ranks.by_key, self._clock(), not self._stranded
        changes, new = list[Change](), Change.NEW
        with self.batch():
            for key, tail, directory, mtime_ns, disk_bytes in rows:
                rank = by_key.get(key)
                packed = b"" if rank is None else ranks.loose.get(key)
                longer = None
                if packed is not None and mtime_ns <= now and may_be_short:
                    longer = append(packed, directory, tail, mtime_ns, disk_bytes, marks[directory])
                if longer is None:
                    changes.append(self.upsert(key, tail, directory, mtime_ns, disk_bytes))
                    continue
                changes.append(new)
                add(directory, disk_bytes)
                if rank is None:
                    ranks.add(key, mtime_ns, longer)
                    continue
                ranks.loose[key] = longer
                if mtime_ns > rank[0]:
                    by_key[key] = (mtime_ns, rank[1])
        return changes

    def discard(self, key: str, tail: str, directory: int) -> bool:
        """This shard is no more. False when it was not known. O(s + log n)."""
        rank = self._ranks.by_key.get(key)
        if rank is None:
            return False
        recency, key = rank
        rest, old = self.packing.drop(self._ranks.packed(rank), directory, tail)
        if old is None:
            return False
        if not rest:
            self.remove(key)
            return True
        self.totals.subtract(directory, old[1])
        if self._first_seen.forget(key, directory, tail, old[0]) == recency:
            recency = self._first_seen.newest(key, rest)
        self._ranks.write(rank, recency, rest)
        return True

    # Groups

    @property
    def loading(self) -> bool:
        """Whether `open()` is still to come."""
        return self._ranks.loading

    def open(self) -> None:
        """End loading: sort all groups, once. O(n log n), 2 s for a million. Idempotent."""
        self._ranks.open()

    def touch(self, key: str, recency_ns: int) -> bool:
        """Raise the recency of a group to this; never lower it. False when the key is not known. O(log n)."""
        rank = self._ranks.by_key.get(key)
        if rank is None:
            return False
        if recency_ns > rank[0]:
            self._ranks.write(rank, recency_ns, self._ranks.packed(rank))
        return True

    def oldest(self) -> str | None:
        """The key of the oldest group that can be popped. O(log n) amortized. Raises RuntimeError while loading."""
        self._require_open()
        if self.totals.frozen and not self.totals.any_live_base():
            return None
        while self._ranks.order:
            rank: Rank
            rank, packed = self._ranks.order.peekitem(0)
            if self.totals.any_live(packed):
                return rank[1]
            self._ranks.strand(rank)
        return None

    def pop_oldest(self) -> Popped | None:
        """Take the oldest group out; None when there is none to take. O(s + log n). Where a base is frozen, amortized;
        then only shards on live bases are taken, and the rest is stranded. Raises RuntimeError while loading."""
        if self.totals.frozen or self._ranks.loading:
            key = self.oldest()
            return None if key is None else self._pop_live(key)
        if not self._ranks.order:
            return None
        (recency, key), packed = self._ranks.order.popitem(0)
        del self._ranks.by_key[key]
        self._gone(key, packed)
        popped: Popped = tuple.__new__(Popped, (key, recency, packed))  # half of what the constructor takes
        return popped

    def pop(self, key: str) -> Popped | None:
        """Take this group out, as `pop_oldest` would; None when it is not known or has no place in the order.
        O(s + log n). Raises RuntimeError while loading."""
        self._require_open()
        if key not in self._ranks.by_key or key in self._ranks.loose:
            return None
        return self._pop_live(key) if self.totals.frozen else self.remove(key)

    def after(self, rank: Rank | None, limit: int) -> list[Popped]:
        """Up to so many groups of the order, oldest first, from behind this rank on. They stay where they are.
        O(log n + limit). Raises RuntimeError while loading."""
        self._require_open()
        order = self._ranks.order
        ranks = islice(order.irange(rank, inclusive=(False, True)), limit)
        return [Popped(key, recency, order[recency, key]) for recency, key in ranks]

    def remove(self, key: str) -> Popped | None:
        """Take a group out, all of it, even if held or frozen. None when it is not known. O(s + log n)."""
        rank = self._ranks.by_key.get(key)
        if rank is None:
            return None
        packed = self._ranks.remove(rank)
        self._gone(key, packed)
        return Popped(rank[1], rank[0], packed)

    def snapshot(self, key: str) -> Popped:
        """A group as it is, which stays where it is. O(1). Raises KeyError when it is not known."""
        rank = self._ranks.by_key[key]
        return Popped(rank[1], rank[0], self._ranks.packed(rank))

    def restore(self, popped: Popped) -> None:
        """Put back those shards of a popped group that are not known now, and its recency if that is higher.
        O(s**2 + log n)."""
        key = popped.key
        rank = self._ranks.by_key.get(key)
        packed = b"" if rank is None else self._ranks.packed(rank)
        any_live = False
        for directory, tail, mtime_ns, disk_bytes, mark in self.packing.rows(popped.packed):
            if self.packing.has(packed, directory, tail):
                continue
            packed, _ = self.packing.put(packed, directory, tail, mtime_ns, disk_bytes, mark)
            self.totals.add(directory, disk_bytes)
            any_live = any_live or self.totals.live(directory)
            if mtime_ns > popped.recency_ns:
                # Only an mtime that was in the future can be above the recency. It was seen no later than that.
                self._first_seen.put(key, directory, tail, popped.recency_ns)
        if rank is None:
            self._ranks.add(key, popped.recency_ns, packed)
            return
        self._ranks.write(rank, max(rank[0], popped.recency_ns), packed)
        if any_live and key in self._stranded:
            self._ranks.unstrand((key,))

    def __len__(self) -> int:
        """The number of groups, loose ones too. O(1)."""
        return len(self._ranks.by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._ranks.by_key

    def __iter__(self) -> Iterator[str]:
        """The keys of all groups that can be popped, oldest first. The order must not change meanwhile. Raises
        RuntimeError while loading."""
        self._require_open()
        return (rank[1] for rank, packed in self._ranks.order.items() if self.totals.any_live(packed))

    def keys(self) -> KeysView[str]:
        """The keys of all groups, loose ones too, in no special order: a view."""
        return self._ranks.by_key.keys()

    # What keeps a group out of the order

    def hold(self, key: str) -> None:
        """Keep the group of this key, now or formed later, from being popped, until as many calls of `release`.
        O(log n)."""
        self._ranks.hold(key)

    def release(self, key: str) -> None:
        """Undo one `hold`. O(log n). Raises KeyError when the key is not held."""
        self._ranks.release(key)

    def held(self, key: str) -> bool:
        """Whether the key is held. O(1)."""
        return key in self._held

    def freeze(self, base: int) -> None:
        """Shards on this base cannot be popped from now on. O(1). Idempotent."""
        self.totals.frozen.add(base)

    def thaw(self, base: int) -> None:
        """Shards on this base can be popped again. O(m log n) for m stranded groups. Idempotent."""
        self.totals.frozen.discard(base)
        self._ranks.unstrand([key for key in self._stranded if self.totals.any_live(self._ranks.loose[key])])

    # Helpers

    def _pop_live(self, key: str) -> Popped | None:
        """Pop what of a group in the order is on live bases, and strand the rest."""
        rank = self._ranks.by_key[key]
        recency, key = rank
        packed = self._ranks.packed(rank)
        live, rest = self.packing.split(packed, self.totals.live)
        if not rest:
            return self.remove(key)
        if not live:
            return None
        touched = recency > self._first_seen.newest(key, packed)
        for directory, tail, mtime_ns, _, _ in self.packing.rows(live):
            self._first_seen.forget(key, directory, tail, mtime_ns)
        self.totals.subtract_packed(live)
        self._ranks.strand(rank)
        self._ranks.write(rank, recency if touched else self._first_seen.newest(key, rest), rest)
        return Popped(key, recency, live)

    def _gone(self, key: str, packed: bytes) -> None:
        if self._first_seen.by_key:
            self._first_seen.by_key.pop(key, None)
        self.totals.subtract_packed(packed)

    def _require_open(self) -> None:
        if self._ranks.loading:
            raise RuntimeError("the order is loading: open() comes first")

    def check(self) -> None:
        """Assert every invariant. O(n log n): for tests."""
        self._ranks.check()
        groups = {key: self._ranks.packed(rank) for key, rank in self._ranks.by_key.items()}
        self.totals.check(groups.values())
        self._first_seen.check(groups)
        assert len(self._marks) == len(self.totals.bases)
        for key, packed in groups.items():
            identities = {(directory, tail) for directory, tail, *_ in self.packing.rows(packed)}
            assert 0 < len(identities) == self.packing.count(packed), f"{key!r} is empty, or has a shard twice"
            assert self._ranks.by_key[key][0] >= self._first_seen.newest(key, packed)
        assert not any(self.totals.any_live(groups[key]) for key in self._stranded)
