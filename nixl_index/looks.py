"""Names that wait for a look, and the look: `lstat` is the truth, and "no" needs proof. Used by the scout alone."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from stat import S_ISREG
from time import monotonic

from nixl_index import records
from nixl_index.disk import Base, Directory, disk_bytes_of, first_changed, mtime_of
from nixl_index.records import Message, Origin

MAX_DIRTY = 1 << 18
"""Names that may wait while the host does not read; beyond, the scout says that it lost events."""

READ_SECONDS = 1.0
"""How long a read waits at most, to be told with others."""

Tell = Callable[[Message], None]
Name = tuple[Directory, bytes]
"""A file's name, in its bucket."""


class Errors:
    """Errors of the file system that prove nothing, and the directories of which they leave something untold."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self.doubtful: set[Directory] = set()

    def add(self, error: OSError, directory: Directory | None = None) -> None:
        """Count one; the directory is in doubt until a listing of it was whole."""
        self.count += 1
        self.last = str(error)
        if directory:
            self.doubtful.add(directory)


class Table:
    """What was found and what is gone, until it is told."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._found: list[tuple[int, int, int, bytes]] = []
        self._gone: list[tuple[int, bytes]] = []

    def add(self, bucket: Directory, name: bytes, stat: os.stat_result) -> None:
        """This is a shard."""
        self._found.append((bucket.number, mtime_of(stat), disk_bytes_of(stat), name))

    def miss(self, names: Iterable[Name]) -> None:
        """These are provably no shards."""
        self._gone += [(bucket.number, name) for bucket, name in names]

    def tell(self, tell: Tell) -> None:
        """Tell all of it."""
        if self._found:
            tell(records.Shards(self._origin, *zip(*self._found, strict=True)))
        if self._gone:
            tell(records.Gone(self._origin, *zip(*self._gone, strict=True)))


class Dirty:
    """Names that events told of since the last look, the longest ago first: each once, however often it was told of."""

    def __init__(self) -> None:
        self._waiting: deque[Name] = deque()
        self._known: set[Name] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, name: Name) -> bool:
        return name in self._known

    def add(self, name: Name) -> None:
        """Something happened to this name."""
        if name not in self._known:
            self._known.add(name)
            self._waiting.append(name)

    @property
    def overfull(self) -> bool:
        """Are there more than may wait?"""
        return len(self._waiting) > MAX_DIRTY

    def take(self, limit: int) -> list[Name]:
        """Up to so many of them, which do not wait any longer."""
        popleft = self._waiting.popleft
        taken = [popleft() for _ in range(min(limit, len(self._waiting)))]
        self._known.difference_update(taken)
        return taken


class Reads:
    """Names that were read, told together once a second, each once: a hint is not urgent, and each waking of the host
    costs as much as a hundred names. They are those that were opened for reading alone; of those that were opened for
    writing too (as SGLang reads), where nothing was written, one look a second is told."""

    def __init__(self) -> None:
        self._waiting: dict[Name, None] = {}
        self._looked_at: dict[Name, tuple[int, int]] = {}
        self._forget_at = self._tell_at = 0.0

    def repeats(self, bucket: Directory, name: bytes, stat: os.stat_result) -> bool:
        """Was this very thing told of the name within this second?"""
        is_now = (mtime_of(stat), disk_bytes_of(stat))
        key = (bucket, name)
        if self._looked_at.get(key) == is_now:
            return True
        self._looked_at[key] = is_now
        return False

    def forget(self, bucket: Directory, names: list[bytes]) -> None:
        """These names are gone: whatever comes in their place is to be told."""
        for name in names:
            self._looked_at.pop((bucket, name), None)

    def add(self, name: Name) -> None:
        """This name was read."""
        if len(self._waiting) < MAX_DIRTY:  # beyond, the host does not listen
            self._waiting[name] = None

    def tell(self, tell: Tell) -> None:
        """Tell those that wait, if the last ones were told a second ago."""
        now = monotonic()
        if now >= self._forget_at:
            self._forget_at = now + READ_SECONDS
            self._looked_at.clear()
        if self._waiting and now >= self._tell_at:
            self._tell_at = now + READ_SECONDS
            waiting, self._waiting = self._waiting, {}
            tell(records.Reads([bucket.number for bucket, _ in waiting], [name for _, name in waiting]))


def look(
    names: Iterable[Name],
    origin: Origin,
    tell: Tell,
    touching: Callable[[Base], None],
    errors: Errors,
    reads: Reads | None,
) -> list[Directory]:
    """`lstat` these names and tell what they are. Returns the directories that are not the ones that were indexed: of
    the names that are missing there nothing was told. An error tells nothing either: `errors` takes note of it. With
    `reads`, what an event repeats within a second is told once."""
    table, changed = Table(origin), []
    missing = _look(names, table, touching, errors, reads if origin == Origin.EVENT else None)
    for bucket, gone in missing.items():
        if reads:
            reads.forget(bucket, gone)
        touching(bucket.base)
        try:
            wrong = first_changed(bucket)
        except OSError as error:
            errors.add(error, bucket)
            continue
        if wrong:
            changed.append(wrong)
        else:
            table.miss((bucket, name) for name in gone)
    table.tell(tell)
    return changed


def _look(
    names: Iterable[Name], table: Table, touching: Callable[[Base], None], errors: Errors, reads: Reads | None
) -> dict[Directory, list[bytes]]:
    """Look at these names: those that seem to be no shards, by bucket."""
    missing: dict[Directory, list[bytes]] = {}
    at: Base | None = None
    for bucket, name in names:
        if bucket.base.frozen:
            continue
        if bucket.base is not at:
            at = bucket.base
            touching(at)
        try:
            # Not by path where no directory was: what stands there may be a symlink to somewhere else.
            stat = bucket.identity and os.lstat(bucket.path + b"/" + name)
        except (FileNotFoundError, NotADirectoryError):
            stat = None
        except OSError as error:
            errors.add(error, bucket)
            continue
        if not stat or not S_ISREG(stat.st_mode):
            missing.setdefault(bucket, []).append(name)
        elif not (reads and reads.repeats(bucket, name, stat)):
            table.add(bucket, name, stat)
    return missing
