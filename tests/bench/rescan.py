"""What the index replaces: a cleaner that reads the whole tree each time it evicts. Correct, and nothing more."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nixl_index import KeyScheme


def read(bases: Sequence[str], scheme: KeyScheme) -> dict[str, tuple[int, list[str]]]:
    """Walk all buckets, and group what is there: the newest mtime, in ns, and the paths of each group."""
    groups: dict[str, tuple[int, list[str]]] = {}
    for base in bases:
        for bucket in os.listdir(base):
            for name in os.listdir(f"{base}/{bucket}"):
                key = scheme(name)
                if key is None:
                    continue
                path = f"{base}/{bucket}/{name}"
                newest, paths = groups.setdefault(key, (0, []))
                paths.append(path)
                groups[key] = (max(newest, os.lstat(path).st_mtime_ns), paths)
    return groups


def evict_oldest(bases: Sequence[str], scheme: KeyScheme, n: int) -> None:
    """Read the tree, and unlink the `n` groups whose newest shard is oldest."""
    groups = read(bases, scheme)
    for _, key in sorted((newest, key) for key, (newest, _) in groups.items())[:n]:
        for path in groups[key][1]:
            os.unlink(path)


def list_names(bases: Sequence[str]) -> int:
    """The least that a reading can do: list all names. Returns how many there are."""
    return sum(len(os.listdir(f"{base}/{bucket}")) for base in bases for bucket in os.listdir(base))
