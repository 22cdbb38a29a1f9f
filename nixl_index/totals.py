"""What lies on each base: shards, disk bytes, and whether the base is frozen. Pure: no lock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from nixl_index.packed import DIRECTORY, MAX_DIRECTORIES, Packing

_SHARD = 1 << 64


class Totals:
    """Counts shards by base, given the ids of their directories. Every method is O(1) but those that take packed
    shards, which are O(s)."""

    __slots__ = ("_loads", "bases", "frozen")

    def __init__(self) -> None:
        self.bases: list[int] = []
        """The number of the base of each directory."""
        # Of each base: its shards, times `_SHARD`, and their disk bytes. One number, as every shard of a group that is
        # popped is subtracted: a third of what a pop costs (`tests/bench/order.py`).
        self._loads: dict[int, int] = {}
        self.frozen: set[int] = set()

    @property
    def shards(self) -> dict[int, int]:
        """How many shards are on the base of this number. O(bases)."""
        return {base: load // _SHARD for base, load in tuple(self._loads.items())}

    @property
    def nbytes(self) -> dict[int, int]:
        """Their disk bytes. O(bases)."""
        return {base: load % _SHARD for base, load in tuple(self._loads.items())}

    @property
    def count(self) -> int:
        """How many shards, on all bases. O(bases)."""
        return sum(self._loads.values()) // _SHARD

    @property
    def size(self) -> int:
        """Their disk bytes. O(bases)."""
        return sum(self._loads.values()) % _SHARD

    def on(self, bases: Iterable[int]) -> tuple[int, int]:
        """How many shards are on these bases together, and their disk bytes. O(bases)."""
        return divmod(sum(self._loads.get(base, 0) for base in bases), _SHARD)

    def add_directory(self, base: int) -> int:
        """The id of one more directory on this base. Raises OverflowError when ids have run out."""
        if len(self.bases) >= MAX_DIRECTORIES:
            raise OverflowError(f"more than {MAX_DIRECTORIES} directories")
        self.bases.append(base)
        self._loads.setdefault(base, 0)
        return len(self.bases) - 1

    def add(self, directory: int, disk_bytes: int) -> None:
        """Count one more shard."""
        self._loads[self.bases[directory]] += _SHARD + disk_bytes

    def subtract(self, directory: int, disk_bytes: int) -> None:
        """Count one shard less."""
        self._loads[self.bases[directory]] -= _SHARD + disk_bytes

    def resize(self, directory: int, by: int) -> None:
        """Count these bytes more, of a shard that is counted."""
        self._loads[self.bases[directory]] += by

    def subtract_packed(self, packed: bytes) -> None:
        """Count all these shards less."""
        bases, loads = self.bases, self._loads
        if len(loads) == 1:
            (base,) = loads
            loads[base] -= Packing.count(packed) * _SHARD + Packing.sum_bytes(packed)
            return
        for word, disk_bytes in Packing.words(packed):
            loads[bases[word & DIRECTORY]] -= _SHARD + disk_bytes

    def live(self, directory: int) -> bool:
        """Whether the directory's base is not frozen."""
        return self.bases[directory] not in self.frozen

    def any_live(self, packed: bytes) -> bool:
        """Whether one of these shards is on a base that is not frozen."""
        return not self.frozen or any(self.live(directory) for directory, _ in Packing.weights(packed))

    def any_live_base(self) -> bool:
        """Whether some base that is not frozen has shards at all."""
        return any(count and base not in self.frozen for base, count in self.shards.items())

    def check(self, groups: Iterable[bytes]) -> None:
        """Assert that these groups add up to what was counted. O(shards)."""
        shards = dict.fromkeys(self.shards, 0)
        nbytes = dict.fromkeys(self.shards, 0)
        for packed in groups:
            for directory, disk_bytes in Packing.weights(packed):
                shards[self.bases[directory]] += 1
                nbytes[self.bases[directory]] += disk_bytes
        assert shards == self.shards
        assert nbytes == self.nbytes
