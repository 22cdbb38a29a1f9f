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

    def spend(self, popped: Popped, sign: int = 1) -> None:
        """It goes; with -1: it was left alone after all."""


class CountBudget:
    """So many groups, whichever are the oldest."""

    def __init__(self, groups: float) -> None:
        self._groups = groups

    @property
    def open(self) -> bool:
        return self._groups > 0

    def wants(self, popped: Popped) -> bool:
        return True

    def spend(self, popped: Popped, sign: int = 1) -> None:
        self._groups -= sign


class BytesBudget:
    """Groups of so many disk bytes; the last one may go beyond."""

    def __init__(self, disk_bytes: int) -> None:
        self._left = disk_bytes

    @property
    def open(self) -> bool:
        return self._left > 0

    def wants(self, popped: Popped) -> bool:
        return True

    def spend(self, popped: Popped, sign: int = 1) -> None:
        self._left -= sign * Packing.sum_bytes(popped.packed)


class KeyBudget:
    """Every group whose key is wanted; `keys` names them where they are known beforehand."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self.open = True

    def wants(self, popped: Popped) -> bool:
        return self._wants(popped.key)

    def spend(self, popped: Popped, sign: int = 1) -> None:
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
    base of each directory."""

    def __init__(self, deficits: list[Deficit], base_of: Callable[[int], int]) -> None:
        self._deficits = deficits
        self._base_of = base_of

    @property
    def open(self) -> bool:
        return any(deficit.open for deficit in self._deficits)

    def wants(self, popped: Popped) -> bool:
        wanted = {base for deficit in self._deficits if deficit.open for base in deficit.bases}
        return any(self._base_of(directory) in wanted for directory, _ in Packing.weights(popped.packed))

    def spend(self, popped: Popped, sign: int = 1) -> None:
        for directory, disk_bytes in Packing.weights(popped.packed):
            base = self._base_of(directory)
            for deficit in self._deficits:
                if base in deficit.bases:
                    deficit.disk_bytes -= sign * disk_bytes
                    deficit.files -= sign
