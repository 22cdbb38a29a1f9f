"""How recent a group is, and the order that follows from it. Pure: no lock, no I/O.

The lower half of `GroupOrder`: `FirstSeen` says what an mtime counts as, `Ranks` keeps groups sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import TypeAlias

from sortedcontainers import SortedDict

from nixl_index.packed import Packing

Rank: TypeAlias = tuple[int, str]
"""Recency in ns and group key: what groups are sorted by."""


class FirstSeen:
    """The shards whose mtime lay in the future, with the time when they were first seen, which counts instead for as
    long as the shard stays as it is. Usually empty. Costs are for a group of s shards."""

    __slots__ = ("_clock", "_packing", "by_key")

    def __init__(self, clock: Callable[[], int], packing: Packing) -> None:
        self._clock = clock
        self._packing = packing
        self.by_key: dict[str, dict[tuple[int, str], int]] = {}

    def add(self, key: str, directory: int, tail: str, mtime_ns: int) -> int:
        """The mtime that a shard counts with which is new or rewritten. O(1)."""
        now = self._clock()
        if mtime_ns <= now:
            return mtime_ns
        self.put(key, directory, tail, now)
        return now

    def put(self, key: str, directory: int, tail: str, seen_ns: int) -> None:
        """This shard's mtime lies in the future; it counts as of this time. O(1)."""
        self.by_key.setdefault(key, {})[directory, tail] = seen_ns

    def forget(self, key: str, directory: int, tail: str, mtime_ns: int) -> int:
        """The mtime that a shard counted with which is gone or rewritten. O(1)."""
        seen = self.by_key.get(key)
        if seen is None:
            return mtime_ns
        effective = seen.pop((directory, tail), mtime_ns)
        if not seen:
            del self.by_key[key]
        return effective

    def newest(self, key: str, packed: bytes) -> int:
        """The newest mtime that a shard of the group counts with. O(s)."""
        seen = self.by_key.get(key)
        if seen is None:
            return self._packing.newest(packed)
        return max(
            seen.get((directory, tail), mtime_ns) for directory, tail, mtime_ns, _, _ in self._packing.rows(packed)
        )

    def check(self, groups: Mapping[str, bytes]) -> None:
        """Assert that each entry has its shard, with an mtime above it. O(shards)."""
        for key, seen in self.by_key.items():
            mtimes = {(directory, tail): mtime for directory, tail, mtime, _, _ in self._packing.rows(groups[key])}
            assert seen
            assert all(seen_ns < mtimes[shard] for shard, seen_ns in seen.items())


class Ranks:
    """Groups by key, sorted by rank as far as they are not loose: while all are loading, or one is held, stranded or on
    the move. Costs are for n groups.

    The packed shards of a group stand in exactly one of `order` and `loose`. The rank is one object in `by_key` and
    `order`, and its key is the very key of `by_key`: a second copy would cost 100 bytes a group.
    """

    __slots__ = ("_moving", "by_key", "held", "loading", "loose", "order", "stranded")

    def __init__(self) -> None:
        self.by_key: dict[str, Rank] = {}
        self.order: SortedDict = SortedDict()
        self.loose: dict[str, bytes] = {}
        self.loading = True
        self.held: dict[str, int] = {}
        """How many holds there are of a key, also of one whose group is not there."""
        self.stranded: set[str] = set()
        """Groups that have nothing on a live base."""
        self._moving: set[str] | None = None

    def begin(self) -> None:
        """Until `end`, groups that move wait among the loose ones: several changes of one share one move. A move is the
        larger half of what a change costs (`tests/bench/apply.py`)."""
        self._moving = set()

    def end(self) -> None:
        """Put the groups that moved where they belong. O(m log n) for m of them."""
        moving, self._moving = self._moving or (), None
        for key in moving:
            packed = self.loose.pop(key, None)
            if packed is not None:
                self.order[self.by_key[key]] = packed

    def packed(self, rank: Rank) -> bytes:
        """The shards of the group of this rank. O(1)."""
        packed = self.loose.get(rank[1])
        if packed is None:
            packed = self.order[rank]
        return packed

    def open(self) -> None:
        """End loading. O(n log n). Idempotent."""
        if self.loading:
            self.loading = False
            self.fasten(key for key in self.by_key if key not in self.held)

    def add(self, key: str, recency_ns: int, packed: bytes) -> None:
        """A group that is not there yet. O(log n)."""
        rank = self.by_key[key] = (recency_ns, key)
        if self.loading or key in self.held:
            self.loose[key] = packed
        elif self._moving is not None:
            self._moving.add(key)
            self.loose[key] = packed
        else:
            self.order[rank] = packed

    def write(self, rank: Rank, recency_ns: int, packed: bytes) -> None:
        """The group of this rank has these shards and this recency from now on. O(log n), O(1) if it need not move."""
        old_recency_ns, key = rank
        loose = key in self.loose
        if recency_ns != old_recency_ns:
            # A key is never changed where it stands: removed, changed, inserted.
            if not loose:
                del self.order[rank]
                if self._moving is not None:
                    self._moving.add(key)
                    loose = True
            rank = self.by_key[key] = (recency_ns, key)
        if loose:
            self.loose[key] = packed
        else:
            self.order[rank] = packed

    def remove(self, rank: Rank) -> bytes:
        """Take a group out, wherever it stands; returns its shards. O(log n)."""
        del self.by_key[rank[1]]
        self.stranded.discard(rank[1])
        packed = self.loose.pop(rank[1], None)
        if packed is None:
            packed = self.order.pop(rank)
        return packed

    def hold(self, key: str) -> None:
        """Keep this key's group loose, now or when it is formed, until as many calls of `release`. O(log n)."""
        self.held[key] = self.held.get(key, 0) + 1
        rank = self.by_key.get(key)
        if rank is not None and key not in self.loose:
            self.loosen(rank)

    def release(self, key: str) -> None:
        """Undo one `hold`. O(log n). Raises KeyError when the key is not held."""
        self.held[key] -= 1
        if self.held[key]:
            return
        del self.held[key]
        if key in self.loose and not self.loading and key not in self.stranded:
            self.fasten((key,))

    def strand(self, rank: Rank) -> None:
        """A group of the order has nothing on a live base any more. O(log n)."""
        self.loosen(rank)
        self.stranded.add(rank[1])

    def unstrand(self, keys: Collection[str]) -> None:
        """These have something there again. O(m log n) for m keys."""
        self.stranded.difference_update(keys)
        self.fasten(key for key in keys if key not in self.held)

    def loosen(self, rank: Rank) -> None:
        """Take a group out of the order and keep it loose. O(log n)."""
        self.loose[rank[1]] = self.order.pop(rank)

    def fasten(self, keys: Iterable[str]) -> None:
        """Put loose groups into the order, many at once. O(m log n) for m keys."""
        # By the number first: to sort a million ranks as tuples from the start takes three times as long.
        ranks = sorted((self.by_key[key] for key in keys), key=itemgetter(0))
        self.order.update({rank: self.loose.pop(rank[1]) for rank in ranks})
        # A dict does not shrink when it is emptied; a copy is small.
        if len(ranks) > len(self.loose):
            self.loose = dict(self.loose)

    def check(self) -> None:
        """Assert that the three agree. O(n log n)."""
        assert self._moving is None
        assert all(count > 0 for count in self.held.values())
        if self.loading:
            assert not self.order
            assert not self.stranded
        else:
            assert self.loose.keys() == self.stranded | (self.held.keys() & self.by_key.keys())
        self.order._check()
        assert len(self.order) + len(self.loose) == len(self.by_key)
        assert self.order.keys() | {self.by_key[key] for key in self.loose} == set(self.by_key.values())
        assert all(key is rank[1] for key, rank in self.by_key.items())
        for rank in (*self.order, *dict.__iter__(self.order)):
            assert self.by_key[rank[1]] is rank
