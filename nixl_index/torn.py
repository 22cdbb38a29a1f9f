"""Torn groups: a rank's shard is missing, so the reader misses the whole entry, and what is left only takes space.

A tail `_{rank}_{size}{component}` says that `size` ranks exist; what the others should have is told apart by component.
Groups without ranks (MLA) are never torn. A component that is missing for all ranks leaves no trace. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from nixl_index.packed import Packing

_RANK = re.compile(r"_([0-9]{1,9})_([0-9]{1,9})(.*)", re.DOTALL)


def missing_ranks(tails: Iterable[str], ranks: Collection[int] | None = None) -> dict[str, set[int]]:
    """Which ranks of which component are missing, given the tails of a group's shards. `ranks` are those that this host
    stores; all unless given. O(shards + sizes)."""
    seen: dict[tuple[str, int], set[int]] = {}
    for tail in tails:
        match = _RANK.fullmatch(tail)
        if match and int(match[1]) < int(match[2]):
            seen.setdefault((match[3], int(match[2])), set()).add(int(match[1]))
    missing: dict[str, set[int]] = {}
    for (component, size), there in seen.items():
        wanted = range(size) if ranks is None else [rank for rank in ranks if rank < size]
        lacking = {rank for rank in wanted if rank not in there}
        if lacking:
            missing.setdefault(component, set()).update(lacking)
    return missing


def is_torn(packing: Packing, packed: bytes, ranks: Collection[int] | None) -> bool:
    """Does a packed group lack ranks?"""
    return bool(missing_ranks((row[1] for row in packing.rows(packed)), ranks))
