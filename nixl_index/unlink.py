"""Verify, then unlink: the only code that removes files. Used by the scout alone.

Every directory from the base to the bucket is opened by name below the one before, never through a symlink, and must be
the one that was indexed, by (device, inode); shards are looked at and unlinked relative to it, so that nothing outside
an indexed bucket can be hit, whatever happens to the path meanwhile. All shards of a group are looked at before the
first is unlinked. What remains is the time between the look at a shard and its unlink, a millisecond at most: a file
rewritten within it is lost, as it would be to any other cleaner.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from stat import S_ISREG
from time import monotonic
from typing import NamedTuple

from nixl_index.disk import Directory, disk_bytes_of, mtime_of
from nixl_index.looks import Name
from nixl_index.records import Outcome

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BASE_FAULTS = (errno.EROFS, errno.EIO)
STALE_SECONDS = 0.001
"""A look at a shard that is older than that is repeated before its unlink: the unlinks before it were slow, or hung."""


class Eviction(NamedTuple):
    """What became of one group. `unlinked` are proven to be gone: by this very unlink, in the directory that was
    indexed. `culprit` is the directory to look at again where the outcome is FROZEN."""

    outcome: Outcome
    unlinked: Sequence[Name] = ()
    freed: int = 0
    errno: int = 0
    culprit: Directory | None = None


class _ChangedError(Exception):
    """A directory is not the one that was indexed."""

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory.path)
        self.directory = directory


class Unlinker:
    """Buckets held open for one step, and no longer: an open directory keeps its mount busy. A context manager."""

    def __init__(self) -> None:
        self._fds: dict[Directory, int | None] = {}

    def __enter__(self) -> Unlinker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for fd in self._fds.values():
            if fd is not None:
                os.close(fd)
        self._fds.clear()

    def _open(self, directory: Directory) -> int | None:
        """A descriptor of the directory that was indexed; None where there was and is none."""
        if directory not in self._fds:
            self._fds[directory] = self._open_new(directory)
        return self._fds[directory]

    def _open_new(self, directory: Directory) -> int | None:
        if directory.base.frozen:
            raise _ChangedError(directory.base.root)
        above = self._open(directory.parent) if directory.parent else None
        fd = None
        if above is not None or not directory.parent:
            name = directory.path if above is None else directory.path.rpartition(b"/")[2]
            try:
                fd = os.open(name, _OPEN, dir_fd=above)
            except (FileNotFoundError, NotADirectoryError):
                fd = None
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        stat = os.fstat(fd) if fd is not None else None
        if directory.identity != (stat and (stat.st_dev, stat.st_ino)):
            if fd is not None:
                os.close(fd)
            raise _ChangedError(directory)
        return fd

    def evict(self, shards: Sequence[tuple[Directory, bytes, int]]) -> Eviction:
        """Unlink a group's shards, (bucket, name, indexed mtime) each, if all of them are as they were indexed.

        A shard that is gone already is fine and frees nothing. Freed are the disk bytes of files with no link left.
        """
        found: list[tuple[Directory, int, bytes, os.stat_result]] = []
        try:
            for bucket, name, mtime in shards:
                fd = self._open(bucket)
                try:
                    if fd is None:
                        continue
                    stat = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not S_ISREG(stat.st_mode) or mtime_of(stat) != mtime:
                    return Eviction(Outcome.REWRITTEN)
                found.append((bucket, fd, name, stat))
        except _ChangedError as error:
            return Eviction(Outcome.FROZEN, culprit=error.directory)
        except OSError as error:
            if error.errno in _BASE_FAULTS:
                return Eviction(Outcome.FROZEN, errno=error.errno, culprit=bucket.base.root)
            return Eviction(Outcome.FAILED, errno=error.errno or errno.EIO)
        unlinked: list[Name] = []
        freed = failure = 0
        links: dict[tuple[int, int], int] = {}
        fresh_until = monotonic() + STALE_SECONDS
        for bucket, fd, name, stat in found:
            try:
                if monotonic() > fresh_until:
                    now = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if not S_ISREG(now.st_mode) or now.st_mtime_ns != stat.st_mtime_ns:
                        return Eviction(Outcome.REWRITTEN, unlinked, freed)
                os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                failure = error.errno or errno.EIO
                if failure in _BASE_FAULTS:
                    return Eviction(Outcome.FROZEN, unlinked, freed, failure, bucket.base.root)
            else:
                unlinked.append((bucket, name))
                file = (stat.st_dev, stat.st_ino)
                links[file] = links.get(file, stat.st_nlink) - 1
                freed += 0 if links[file] else disk_bytes_of(stat)
        return Eviction(Outcome.FAILED if failure else Outcome.EVICTED, unlinked, freed, failure)
