"""What `GroupIndex.audit` returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Audit:
    """Where index and disk differed, as paths, sorted; all of it is mended. Falsy where they agreed."""

    missing: tuple[str, ...] = ()
    """On the disk, and not in the index."""
    extra: tuple[str, ...] = ()
    """In the index, and not on the disk."""
    rewritten: tuple[str, ...] = ()
    """With another mtime on the disk."""
    settled: tuple[str, ...] = ()
    """With the same mtime and other disk bytes: the file system wrote back late. No difference that counts."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.rewritten)
