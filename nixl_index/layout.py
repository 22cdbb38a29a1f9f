"""Which directories below a base dir are buckets. Pure: no I/O. Imported by the scout, so it stays slim."""

from __future__ import annotations

import fnmatch
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["Layout"]


class Layout:
    """One glob per level from the base dir down to its buckets; immutable, equal and hashable by its pattern.

    `[0-9a-f][0-9a-f]` is what SGLang writes, and the default. The empty pattern is flat: the base is the bucket.
    `[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]` has two levels, and `*/[0-9a-f][0-9a-f]` one directory per tenant above them.

    Globs are those of `fnmatch`, case-sensitive, matched on bytes (`?` is one byte), and never across levels.

    `pattern` is the pattern, `levels` its globs from the base down, `depth` their number. Raises TypeError for a
    pattern that is not a string; ValueError for an empty level, `.`, `..`, `**`, or a NUL.
    """

    __slots__ = ("_matchers", "depth", "levels", "pattern")

    pattern: str
    levels: tuple[str, ...]
    depth: int
    _matchers: tuple[re.Pattern[bytes], ...]

    def __init__(self, pattern: str = "[0-9a-f][0-9a-f]") -> None:
        if not isinstance(pattern, str):
            raise TypeError(f"a layout's pattern must be a string, not {pattern!r}")
        levels = tuple(pattern.split("/")) if pattern else ()
        if "\0" in pattern or not {"", ".", "..", "**"}.isdisjoint(levels):
            raise ValueError(
                f"{pattern!r} is no layout: give one glob per level, without empty levels, '.', '..', '**' or "
                "NUL, like '[0-9a-f][0-9a-f]' or '*/[0-9a-f][0-9a-f]', or '' where the base is the bucket"
            )
        put = object.__setattr__
        put(self, "pattern", pattern)
        put(self, "levels", levels)
        put(self, "depth", len(levels))
        put(self, "_matchers", tuple(map(_compile, levels)))

    def matches(self, level: int, name: bytes) -> bool:
        """Whether a directory's name fits the glob of its level; 0 is directly below the base.

        A name that starts with `.` fits only a glob that starts with `.`. O(len(glob) * len(name)). Raises
        IndexError where there is no such level.
        """
        glob = self.levels[level]
        if name.startswith(b".") and (not glob.startswith(".") or name in (b".", b"..")):
            return False
        return self._matchers[level].match(name) is not None

    def key_prefix(self, parts: Sequence[str]) -> str:
        """What is put before the group keys of one bucket; `parts` are the directories from the base down to it.

        A level above the bucket whose glob has a `*` is a tenant's, and part of the key: `tenantA/` for `*/??` and
        `("tenantA", "3f")`. Equal names of two tenants are two groups. A level of a fixed shape only spreads the
        files of one group over directories, and so does the bucket itself: neither is in the key, or no group would
        be whole. O(depth). Raises ValueError unless there is one part for each level.
        """
        if len(parts) != self.depth:
            raise ValueError(f"{parts!r} are {len(parts)} directories, but {self!r} has {self.depth} levels")
        above = zip(self.levels[:-1], parts, strict=False)
        return "".join(part + "/" for glob, part in above if "*" in glob)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Layout cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Layout cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        return self.pattern == other.pattern if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash((Layout, self.pattern))

    def __repr__(self) -> str:
        return f"Layout({self.pattern!r})"

    def __reduce__(self) -> tuple[type[Layout], tuple[str]]:
        return Layout, (self.pattern,)


def _compile(glob: str) -> re.Pattern[bytes]:
    # By way of Latin-1, where each character is one byte, as fnmatch itself does for bytes.
    raw = glob.encode("utf-8", "surrogateescape").decode("latin-1")
    return re.compile(fnmatch.translate(raw).encode("latin-1"))
