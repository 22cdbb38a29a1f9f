"""Which directory is which: bases and what stands below them, told by (device, inode). Used by the scout alone.

A path proves nothing: another file system may be mounted over it, a parent renamed, a bucket replaced by a symlink.
So every directory that the index covers is known by its identity, and "this shard is gone" counts only while every
directory from the base down to the shard's bucket is still the one that was indexed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from errno import EROFS
from stat import S_ISDIR
from time import monotonic

from nixl_index import records
from nixl_index.mounts import place_of

Identity = tuple[int, int]

UNKNOWN: Identity = (0, 0)
"""The identity of a directory that has not been looked at; no directory has it."""


MAX_TIME = (1 << 63) - 1
FAULT_SECONDS = 60.0
"""How long a base stays frozen whose disk did not take an unlink (EIO)."""


class Directory:
    """A base, a bucket, or a level between. `identity` is None where provably no directory stands at the path."""

    __slots__ = (
        "base",
        "children",
        "identity",
        "is_bucket",
        "level",
        "listed",
        "number",
        "parent",
        "path",
        "queued",
        "wd",
    )

    def __init__(self, base: Base, parent: Directory | None, path: bytes, is_bucket: bool) -> None:
        self.base = base
        self.parent = parent
        self.path = path
        self.level: int = parent.level + 1 if parent else 0
        self.is_bucket = is_bucket
        self.children: dict[bytes, Directory] = {}
        self.identity: Identity | None = UNKNOWN
        self.number = -1
        self.wd = -1
        self.listed = False
        self.queued = False

    def tree(self) -> Iterator[Directory]:
        """This directory and all known ones below it."""
        yield self
        for child in self.children.values():
            yield from child.tree()

    def chain(self) -> list[Directory]:
        """The directories from the base down to this one."""
        chain, link = [self], self.parent
        while link:
            chain.append(link)
            link = link.parent
        return chain[::-1]


class Base:
    """A storage root. `frozen` says why nothing of it is dropped or unlinked; it is empty while the base is live.
    `culprit` is the directory below it that froze it. It is not looked at before `not_before` (`time.monotonic`)."""

    __slots__ = ("_fault", "culprit", "frozen", "not_before", "number", "path", "remote", "root")

    def __init__(self, number: int, path: bytes, identity: Identity, is_bucket: bool) -> None:
        self.number = number
        self.path = path
        self.frozen = ""
        self.culprit: Directory | None = None
        self.not_before = 0.0
        self.remote = ""
        self._fault = 0
        self.root = Directory(self, None, path, is_bucket)
        self.root.identity = identity

    def state(self) -> records.BaseState:
        """What the host is told of it."""
        device, inode = self.root.identity or UNKNOWN
        return records.BaseState(self.number, records.text_of(self.path), device, inode, self.frozen, self.remote)

    def glance(self) -> tuple[Identity | None, str]:
        """The identity of what stands at the path now, and why that may not be touched; empty where it may."""
        known, culprit = self.root.identity, self.culprit
        try:
            identity = identity_of(self.path)
            if identity is None:
                return None, "out of sight: no directory is there"
            if known and known[0] not in (UNKNOWN[0], identity[0]):
                return identity, f"another file system is there; rescan({os.fsdecode(self.path)!r}) takes it over"
            if culprit:
                below = identity_of(culprit.path)
                if below and culprit.identity and below[0] not in (UNKNOWN[0], culprit.identity[0]):
                    return identity, self.frozen
                self.culprit = None
            if self._fault == EROFS and os.statvfs(self.path).f_flag & os.ST_RDONLY:
                return identity, self.frozen
        except OSError as error:
            return None, f"out of sight: {error.strerror}"
        self._fault = 0
        return identity, ""

    def suspend(self, code: int) -> None:
        """The file system refused an unlink with this errno: leave it alone, until it can be written to again, or,
        where nothing tells when it has recovered, for a while."""
        self._fault = code
        self.not_before = 0.0 if code == EROFS else monotonic() + FAULT_SECONDS

    def forget(self) -> None:
        """Whatever stands at the path from now on is the base, with all that is below."""
        self.culprit, self.not_before, self._fault = None, 0.0, 0
        for directory in self.root.tree():
            directory.identity = UNKNOWN


def identity_of(path: bytes) -> Identity | None:
    """(device, inode) of the directory at `path`; None where provably none is there: nothing, a file, a symlink.
    Raises OSError where that cannot be told."""
    try:
        stat = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (stat.st_dev, stat.st_ino) if S_ISDIR(stat.st_mode) else None


def mtime_of(stat: os.stat_result) -> int:
    """The mtime in ns, saturated to the 64 bits that the wire has for it."""
    mtime = stat.st_mtime_ns
    return mtime if -MAX_TIME <= mtime <= MAX_TIME else max(-MAX_TIME, min(MAX_TIME, mtime))


def disk_bytes_of(stat: os.stat_result) -> int:
    """What the file takes on the disk; its size where the file system reports no blocks for a file that has data."""
    return stat.st_blocks * 512 or stat.st_size


def first_changed(directory: Directory) -> Directory | None:
    """The first directory from the base down to this one that is not the one that was indexed, or None.
    Raises OSError where that cannot be told."""
    for link in directory.chain():
        if identity_of(link.path) != link.identity:
            return link
        if link.identity is None:
            break  # nothing is below; a symlink that stands there may lead to something, which is not looked at
    return None


def take_base(given: bytes, earlier: Sequence[Base]) -> tuple[bytes, Identity]:
    """The real path and identity of a base dir. Raises FileNotFoundError, NotADirectoryError, PermissionError, or
    ValueError where it is one of the earlier ones, lies inside one, or holds one."""
    real, path = os.path.realpath(given), os.fsdecode(given)
    try:
        identity = identity_of(real)
        if identity is None:
            if os.path.lexists(real):
                raise NotADirectoryError(f"base dir {path!r} is not a directory")
            raise FileNotFoundError(f"base dir {path!r} does not exist: create it first")
        with os.scandir(real):
            pass
        os.lstat(real + b"/.")
    except PermissionError as error:
        raise PermissionError(f"base dir {path!r} is unreadable for this process ({error.strerror})") from error
    for base in earlier:
        other = os.fsdecode(base.path)
        if identity == base.root.identity:
            raise ValueError(f"base dirs {other!r} and {path!r} are the same directory")
        if base.root.identity in _ancestors(real) or _inside(real, base.path):
            raise ValueError(f"base dir {path!r} lies inside base dir {other!r}")
        if identity in _ancestors(base.path) or _inside(base.path, real):
            raise ValueError(f"base dir {other!r} lies inside base dir {path!r}")
    return real, identity


def _inside(path: bytes, other: bytes) -> bool:
    """Is one directory below another on their disk, whatever mounts they are named by?"""
    (device, place), (other_device, other_place) = place_of(path), place_of(other)
    return device == other_device and place.startswith(other_place + b"/")


def _ancestors(path: bytes) -> list[Identity | None]:
    """The identities of the directories above `path`."""
    found = []
    while path not in (b"/", b""):
        path = os.path.dirname(path)
        found.append(identity_of(path))
    return found
