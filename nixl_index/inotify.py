"""inotify, raw: the calls and constants are watchdog's, the loop that reads is ours. Used by the scout alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import termios

from watchdog.observers.inotify_c import InotifyConstants as C
from watchdog.observers.inotify_c import inotify_add_watch, inotify_init, inotify_rm_watch

OVERFLOW = C.IN_Q_OVERFLOW
IGNORED = C.IN_IGNORED
IS_DIRECTORY = C.IN_ISDIR

_DIRECTORY_ONLY = C.IN_ONLYDIR | C.IN_DONT_FOLLOW
BUCKET_MASK = (
    C.IN_CLOSE_WRITE | C.IN_MOVED_FROM | C.IN_MOVED_TO | C.IN_DELETE | C.IN_ATTRIB | C.IN_EXCL_UNLINK | _DIRECTORY_ONLY
)
"""One event for a write: a shard is complete when it is closed, so neither CREATE nor MODIFY."""
READ = C.IN_CLOSE_NOWRITE
"""Wanted for buckets only where reads are to count as touches: every read of a shard makes one."""
LEVEL_MASK = C.IN_CREATE | C.IN_MOVED_FROM | C.IN_MOVED_TO | C.IN_DELETE | _DIRECTORY_ONLY
"""Above the buckets only directories that come and go are of interest."""
BASE_MASK = C.IN_DELETE_SELF | C.IN_MOVE_SELF
"""A base has no watched parent, so it has to tell of itself."""

_EVENT = struct.Struct("iIII")


def _limit(name: str) -> str:
    """`fs.inotify.<name>` and its present value, for an error that says which limit was met."""
    try:
        with open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as file:
            value = file.read().strip()
    except OSError:
        value = "unknown"
    return f"fs.inotify.{name} (now {value})"


class Inotify:
    """One inotify instance, non-blocking and close-on-exec.

    Raises OSError where none can be had; EMFILE names the sysctl to raise.
    """

    def __init__(self) -> None:
        self._fd = inotify_init()
        if self._fd < 0:
            code = ctypes.get_errno()
            reason = os.strerror(code)
            if code == errno.EMFILE:
                reason += f": raise {_limit('max_user_instances')}, or the limit of open files"
            raise OSError(code, f"no inotify instance: {reason}")
        os.set_inheritable(self._fd, False)
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """The file descriptor, for poll."""
        return self._fd

    def add(self, path: bytes, mask: int) -> int:
        """Watch the directory at `path`: its watch descriptor, the same one for the same directory. Raises OSError;
        ENOSPC names the sysctl to raise."""
        wd: int = inotify_add_watch(self._fd, path, mask)
        if wd < 0:
            code = ctypes.get_errno()
            reason = os.strerror(code)
            if code == errno.ENOSPC:
                reason = f"no room for another inotify watch: raise {_limit('max_user_watches')}"
            raise OSError(code, reason, os.fsdecode(path))
        return wd

    def remove(self, wd: int) -> None:
        """Stop a watch. One that the kernel has ended already is fine."""
        inotify_rm_watch(self._fd, wd)  # type: ignore[arg-type,unused-ignore]

    def read(self) -> list[tuple[int, int, bytes]]:
        """(watch descriptor, mask, name) of every event that waits now, in order. Does not block."""
        events = []
        waiting = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        while waiting > 0:
            try:
                data = os.read(self._fd, max(waiting, 4096))
            except BlockingIOError:
                break
            waiting -= len(data)
            at, end = 0, len(data)
            while at < end:
                wd, mask, _cookie, length = _EVENT.unpack_from(data, at)
                at += 16 + length
                events.append((wd, mask, data[at - length : at].rstrip(b"\0")))
        return events

    def close(self) -> None:
        """Close the instance, and with it every watch. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
