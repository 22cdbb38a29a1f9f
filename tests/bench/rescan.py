"""What the index replaces: a cleaner that reads the whole tree each time it evicts. Correct, and nothing more."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nixl_index import KeyScheme


def evict_oldest(bases: Sequence[str], scheme: KeyScheme, n: int) -> int:
    """Walk all buckets, group what is there, and unlink the `n` groups whose newest shard is oldest. Returns how many
    files were unlinked."""
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
    oldest = sorted((newest, key) for key, (newest, _) in groups.items())[:n]
    unlinked = 0
    for _, key in oldest:
        for path in groups[key][1]:
            os.unlink(path)
            unlinked += 1
    return unlinked
