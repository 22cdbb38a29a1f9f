"""What lies below a base dir and is no shard: nothing ever evicts it. Looks at the disk, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nixl_index.keys import KeyScheme
from nixl_index.layout import Layout
from nixl_index.volumes import LOCK_NAME

OUTSIDE = "outside the layout"
HIDDEN = "hidden or temporary"
FOREIGN = "of other models"
IRREGULAR = "not regular"
UNREADABLE = "that cannot be read"


@dataclass(slots=True)
class Strays:
    """Files of one kind, and some of their paths."""

    files: int = 0
    nbytes: int = 0
    paths: list[str] = field(default_factory=list)


Stray: TypeAlias = tuple[str, "os.DirEntry[str] | str"]
"""Its kind, and the entry, or the path of a directory that cannot be read."""


def find_strays(base: str, layout: Layout, scheme: KeyScheme, examples: int) -> dict[str, Strays]:
    """By kind, with at most so many paths of each. Blocks for a walk of the whole tree."""
    found: dict[str, Strays] = {}
    for kind, entry in _walk(base, 0, layout, scheme):
        strays = found.setdefault(kind, Strays())
        strays.files += 1
        if len(strays.paths) < examples:
            strays.paths.append(entry if isinstance(entry, str) else entry.path)
        if not isinstance(entry, str):
            try:
                strays.nbytes += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue  # it went meanwhile
    return found


def _walk(directory: str, level: int, layout: Layout, scheme: KeyScheme) -> Iterator[Stray]:
    """`level` counts from the base down; beyond that of the buckets, nothing belongs to the layout."""
    try:
        with os.scandir(directory) as scan:
            entries = list(scan)
    except OSError:
        yield UNREADABLE, directory
        return
    for entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if level < layout.depth:
            if is_directory:
                inside = layout.matches(level, os.fsencode(entry.name))
                yield from _walk(entry.path, level + 1 if inside else layout.depth + 1, layout, scheme)
            elif level or os.fsencode(entry.name) != LOCK_NAME:
                yield OUTSIDE, entry
        elif is_directory:
            yield from _walk(entry.path, layout.depth + 1, layout, scheme)
        elif level > layout.depth:
            yield OUTSIDE, entry
        elif not entry.is_file(follow_symlinks=False):
            yield IRREGULAR, entry
        elif scheme.split(entry.name) is None and (layout.depth or os.fsencode(entry.name) != LOCK_NAME):
            yield FOREIGN if scheme.foreign(entry.name) else HIDDEN, entry
