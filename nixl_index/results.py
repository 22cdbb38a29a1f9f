"""What came of an eviction."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EvictedGroup:
    """A group that is gone from the disk: how many files were unlinked, and the disk bytes that this freed. (A file
    that was gone already, or that has another link, frees nothing.) In a dry run: what would go."""

    key: str
    shards: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class SkippedGroup:
    """A group that was left alone, whole or in part, and why. It is in the index as the disk has it."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """What came of a call, oldest group first. `disk_bytes` counts what unlinks freed, those of failed groups included.
    Truthy where a group was evicted."""

    evicted: tuple[EvictedGroup, ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()
    """Rewritten since they were indexed, or not provably where they were."""
    failed: tuple[SkippedGroup, ...] = ()
    """Not all files could be unlinked: in quarantine, so that the rest has its turn."""
    disk_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.evicted)


@dataclass(slots=True)
class Tally:
    """An `Eviction` in the making."""

    evicted: list[EvictedGroup] = field(default_factory=list)
    skipped: list[SkippedGroup] = field(default_factory=list)
    failed: list[SkippedGroup] = field(default_factory=list)
    disk_bytes: int = 0

    def result(self) -> Eviction:
        """What it has come to."""
        return Eviction(tuple(self.evicted), tuple(self.skipped), tuple(self.failed), self.disk_bytes)
