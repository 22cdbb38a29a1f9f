"""What an eviction would take, so that it can be shown before, and that nothing else is taken then. Pure."""

from __future__ import annotations

from typing import NamedTuple

from nixl_index.budget import Budget
from nixl_index.cli import text
from nixl_index.packed import Packing, Popped
from nixl_index.results import Eviction


class Planned(NamedTuple):
    """A group as it was shown."""

    recency_ns: int
    shards: int
    nbytes: int


class Plan:
    """A budget, for a dry run, that notes what another one spends itself on."""

    def __init__(self, budget: Budget) -> None:
        self.groups: dict[str, Planned] = {}
        """By key, oldest first."""
        self._budget = budget

    @property
    def open(self) -> bool:
        """Is there anything left to spend?"""
        return self._budget.open

    def wants(self, popped: Popped) -> bool:
        """Should this group go?"""
        return self._budget.wants(popped)

    def spend(self, popped: Popped) -> None:
        """It would go."""
        self._budget.spend(popped)
        self.groups[popped.key] = _planned(popped)

    def refund(self, popped: Popped, unlinked: int) -> None:
        """A dry run refunds nothing."""

    def again(self) -> PlannedBudget:
        """A budget for exactly these groups."""
        return PlannedBudget(self.groups)

    def changed(self, eviction: Eviction) -> int:
        """How many of these groups an eviction did not even meet as they were."""
        return len(self.groups) - len(eviction.evicted) - len(eviction.skipped) - len(eviction.failed)

    def __str__(self) -> str:
        shards = sum(group.shards for group in self.groups.values())
        nbytes = sum(group.nbytes for group in self.groups.values())
        return f"{text.count(len(self.groups), 'group')}, {text.count(shards, 'shard')}, {text.size(nbytes)}"


class PlannedBudget:
    """The planned groups, each of them only if nothing happened to it since."""

    def __init__(self, groups: dict[str, Planned]) -> None:
        self._left = dict(groups)

    @property
    def open(self) -> bool:
        """Is there any that did not have its turn?"""
        return bool(self._left)

    def wants(self, popped: Popped) -> bool:
        """Was this very group planned?"""
        planned = self._left.get(popped.key)
        # Not by its bytes: file systems settle them late, which is no change.
        return planned is not None and planned[:2] == _planned(popped)[:2]

    def spend(self, popped: Popped) -> None:
        """It had its turn."""
        del self._left[popped.key]

    def refund(self, popped: Popped, unlinked: int) -> None:
        """No other one goes in its place."""


def _planned(popped: Popped) -> Planned:
    return Planned(popped.recency_ns, Packing.count(popped.packed), Packing.sum_bytes(popped.packed))
