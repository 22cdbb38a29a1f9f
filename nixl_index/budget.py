"""How much to evict, and of what: decided before each group is taken. Pure.

What is spent is what the index knows of a group, not what its unlinks turn out to free: a file system whose usage lags
(open files, links, snapshots) can not talk an evictor into taking more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from nixl_index.packed import Packing, Popped


class Budget(Protocol):
    """Asked for each group in turn, oldest first, until it is not `open` any more."""

    @property
    def open(self) -> bool:
        """Is there anything left to spend?"""

    def wants(self, popped: Popped) -> bool:
        """Should this group go?"""

    def spend(self, popped: Popped) -> None:
        """It goes."""

    def refund(self, popped: Popped, unlinked: int) -> None:
        """It did not go as a whole: so many of its shards were unlinked before that turned out."""


class CountBudget:
    """So many groups, whichever are the oldest."""

    def __init__(self, groups: float) -> None:
        self._groups = groups

    @property
    def open(self) -> bool:
        return self._groups > 0

    def wants(self, popped: Popped) -> bool:
        return True

    def spend(self, popped: Popped) -> None:
        self._groups -= 1

    def refund(self, popped: Popped, unlinked: int) -> None:
        self._groups += 1


class BytesBudget:
    """Groups of so many disk bytes; the last one may go beyond."""

    def __init__(self, disk_bytes: int) -> None:
        self._left = disk_bytes

    @property
    def open(self) -> bool:
        return self._left > 0

    def wants(self, popped: Popped) -> bool:
        return True

    def spend(self, popped: Popped) -> None:
        self._left -= Packing.sum_bytes(popped.packed)

    def refund(self, popped: Popped, unlinked: int) -> None:
        if not unlinked:  # else every group that fails half-way would have another one torn in its place
            self._left += Packing.sum_bytes(popped.packed)


class KeyBudget:
    """Every group whose key is wanted."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self.open = True

    def wants(self, popped: Popped) -> bool:
        return self._wants(popped.key)

    def spend(self, popped: Popped) -> None:
        return None

    def refund(self, popped: Popped, unlinked: int) -> None:
        return None


class Deficit:
    """What a volume lacks: disk bytes and inodes to be freed on these bases."""

    def __init__(self, bases: Collection[int], disk_bytes: float, files: float = 0) -> None:
        self.bases = frozenset(bases)
        self.disk_bytes = disk_bytes
        self.files = files

    @property
    def open(self) -> bool:
        """Is there anything left of it?"""
        return self.disk_bytes > 0 or self.files > 0


class DeficitBudget:
    """Groups with a shard on a volume that still lacks something, until none does. `base_of` gives the number of the
    base of each directory; `frozen` are the bases that can give nothing now; of a group with a shard on a base that is
    `forbidden` nothing is taken, since it could not go whole."""

    def __init__(
        self,
        deficits: list[Deficit],
        base_of: Callable[[int], int],
        frozen: Collection[int] = (),
        forbidden: Collection[int] = (),
    ) -> None:
        self._deficits = deficits
        self._base_of = base_of
        self._frozen = frozen
        self._forbidden = forbidden

    @property
    def open(self) -> bool:
        return any(deficit.open for deficit in self._deficits)

    def wants(self, popped: Popped) -> bool:
        wanted = {base for deficit in self._deficits if deficit.open for base in deficit.bases}
        bases = {self._base_of(directory) for directory, _ in Packing.weights(popped.packed)}
        return not bases.isdisjoint(wanted.difference(self._frozen)) and bases.isdisjoint(self._forbidden)

    def spend(self, popped: Popped) -> None:
        self._change(popped, -1)

    def refund(self, popped: Popped, unlinked: int) -> None:
        if not unlinked:
            self._change(popped, 1)

    def _change(self, popped: Popped, sign: int) -> None:
        for directory, disk_bytes in Packing.weights(popped.packed):
            base = self._base_of(directory)
            for deficit in self._deficits:
                if base in deficit.bases:
                    deficit.disk_bytes += sign * disk_bytes
                    deficit.files += sign


class SelectingBudget:
    """What another budget wants, of the groups that a function selects."""

    def __init__(self, budget: Budget, selects: Callable[[Popped], bool]) -> None:
        self._budget = budget
        self._selects = selects

    @property
    def open(self) -> bool:
        return self._budget.open

    def wants(self, popped: Popped) -> bool:
        return self._budget.wants(popped) and self._selects(popped)

    def spend(self, popped: Popped) -> None:
        self._budget.spend(popped)

    def refund(self, popped: Popped, unlinked: int) -> None:
        self._budget.refund(popped, unlinked)
