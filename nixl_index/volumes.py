"""How full file systems are, and who may evict from a base. Used by the scout alone.

The lock is `flock` on a hidden file in the base dir, held for one tick: an open file keeps a mount busy. On the file,
since NFSv4 carries `flock` as a lock of byte ranges, which needs a descriptor that can write, and a directory has none.
Its name starts with a dot, so no key scheme, and no other cleaner, takes it for a shard. It is never removed: whoever
waits for the lock of a file that is unlinked would hold a lock that nobody else meets.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from typing import Any

from nixl_index.disk import Base

LOCK_NAME = b".nixl_index.lock"


def measure(base: Base) -> list[Any]:
    """A row of `records.Measured`. What is unknown is never taken for empty or full."""
    if base.frozen:
        return [0, 0, 0, 0, 0, base.frozen]
    try:
        stat = os.statvfs(base.path)
        device = os.stat(base.path).st_dev
    except OSError as error:
        return [0, 0, 0, 0, 0, str(error)]
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    return [device, size, free, stat.f_files, stat.f_favail, ""]


class Locks:
    """The locks that are held now, by base."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def take(self, base: Base) -> str:
        """Take the lock of this base; why not, where it is not to be had."""
        if base.frozen:
            return base.frozen
        if base.number in self._held:
            return ""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(base.path + b"/" + LOCK_NAME, flags, 0o666)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                return f"its lock file cannot be opened: {error}"
            # Not an inode is left for the file, which is when eviction matters most: the directory has to do.
            fd = os.open(base.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = b""
            with suppress(OSError):
                holder = os.pread(fd, 200, 0)
            os.close(fd)
            return f"{holder.decode(errors='replace') or 'another process'} holds its lock"
        except OSError as error:
            os.close(fd)
            return f"its lock cannot be had: {error}"
        self._held[base.number] = fd
        with suppress(OSError):  # nor a byte may be left: then the next one does not learn who holds it
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return ""

    def release(self) -> None:
        """Let all of them go. Idempotent."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()
