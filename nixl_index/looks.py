"""Names that wait for a look, and the look: `lstat` is the truth, and "no" needs proof. Used by the scout alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from stat import S_ISREG
from time import monotonic

from nixl_index import records
from nixl_index.disk import Base, Directory, disk_bytes_of, first_changed, mtime_of
from nixl_index.records import Message, Origin

MAX_DIRTY = 1 << 18
"""Names that may wait while the host does not read; beyond, the scout says that it lost events."""

Tell = Callable[[Message], None]


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
    """What was found and what is gone, in columns, until it is told."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._directories: list[int] = []
        self._mtimes: list[int] = []
        self._sizes: list[int] = []
        self._names: list[bytes] = []
        self._gone_directories: list[int] = []
        self._gone_names: list[bytes] = []

    def add(self, bucket: Directory, name: bytes, stat: os.stat_result) -> None:
        """This is a shard."""
        self._directories.append(bucket.number)
        self._mtimes.append(mtime_of(stat))
        self._sizes.append(disk_bytes_of(stat))
        self._names.append(name)

    def miss(self, bucket: Directory, names: list[bytes]) -> None:
        """These are provably no shards."""
        self._gone_directories.extend([bucket.number] * len(names))
        self._gone_names.extend(names)

    def tell(self, tell: Tell) -> None:
        """Tell all of it."""
        if self._names:
            tell(records.Shards(self._origin, self._directories, self._mtimes, self._sizes, self._names))
        if self._gone_names:
            tell(records.Gone(self._origin, self._gone_directories, self._gone_names))


class Dirty:
    """Names that events told of since the last look, by bucket: each once, however often it was told of."""

    def __init__(self) -> None:
        self.names: dict[Directory, set[bytes]] = {}
        self._count = 0

    def add(self, bucket: Directory, name: bytes) -> None:
        """Something happened to this name."""
        names = self.names.get(bucket)
        if names is None:
            names = self.names[bucket] = set()
        before = len(names)
        names.add(name)
        self._count += len(names) - before

    @property
    def overfull(self) -> bool:
        """Are there more than may wait?"""
        return self._count > MAX_DIRTY

    def take(self, limit: int) -> dict[Directory, set[bytes]]:
        """Some of them, by whole buckets: as many as it takes to reach the limit. They do not wait any longer."""
        taken: dict[Directory, set[bytes]] = {}
        count = 0
        while self.names and count < limit:
            bucket = next(iter(self.names))  # the one that has waited longest
            names = taken[bucket] = self.names.pop(bucket)
            count += len(names)
        self._count -= count
        return taken


class Reads:
    """Names that were read, each to be told at most once a second: those that were opened for reading alone, and those
    that were opened for writing too (as SGLang reads), where nothing was written."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bytes]] = []
        self._told: set[tuple[int, bytes]] = set()
        self._looked_at: dict[tuple[int, bytes], tuple[int, int]] = {}
        self._until = 0.0

    def repeats(self, bucket: Directory, name: bytes, stat: os.stat_result) -> bool:
        """Was this very thing told of the name within this second?"""
        is_now = (mtime_of(stat), disk_bytes_of(stat))
        key = (bucket.number, name)
        if self._looked_at.get(key) == is_now:
            return True
        self._looked_at[key] = is_now
        return False

    def forget(self, bucket: Directory, names: list[bytes]) -> None:
        """These names are gone: whatever comes in their place is to be told."""
        for name in names:
            self._looked_at.pop((bucket.number, name), None)

    def add(self, bucket: Directory, name: bytes) -> None:
        """This name was read."""
        read = (bucket.number, name)
        if read not in self._told:
            self._told.add(read)
            self._waiting.append(read)

    def tell(self, tell: Tell) -> None:
        """Tell those that wait."""
        if monotonic() > self._until:
            self._told.clear()
            self._looked_at.clear()
            self._until = monotonic() + 1.0
        if self._waiting:
            directories, names = zip(*self._waiting, strict=True)
            self._waiting.clear()
            tell(records.Reads(directories, names))


def look(
    names: Mapping[Directory, set[bytes]],
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
    for bucket in sorted(names, key=lambda bucket: bucket.base.number):
        if bucket.base.frozen:
            continue
        touching(bucket.base)
        missing = _look_into(bucket, names[bucket], table, errors, reads if origin == Origin.EVENT else None)
        if reads:
            reads.forget(bucket, missing)
        if missing:
            try:
                wrong = first_changed(bucket)
            except OSError as error:
                errors.add(error, bucket)
                continue
            if wrong:
                changed.append(wrong)
            else:
                table.miss(bucket, missing)
    table.tell(tell)
    return changed


def _look_into(bucket: Directory, names: set[bytes], table: Table, errors: Errors, reads: Reads | None) -> list[bytes]:
    """Look at names of one bucket: those that seem to be no shards."""
    if bucket.identity is None:
        return list(names)  # not by path: what stands there may be a symlink to somewhere else
    prefix, missing = bucket.path + b"/", []
    for name in names:
        try:
            stat = os.lstat(prefix + name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(name)
        except OSError as error:
            errors.add(error, bucket)
        else:
            if not S_ISREG(stat.st_mode):
                missing.append(name)
            elif not (reads and reads.repeats(bucket, name, stat)):
                table.add(bucket, name, stat)
    return missing
