"""A FUSE file system that shows a directory: `python -m tests.fuse_mirror SOURCE MOUNT_POINT`, until it is unmounted.

What is written to the source is, at the mount point, what another machine wrote: it makes no event there. The raw
protocol of /dev/fuse, as far as it takes to list, look and unlink; nothing is cached by the kernel.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable

LOOKUP, FORGET, GETATTR, UNLINK, RMDIR, STATFS, RELEASE, INIT, OPENDIR, READDIR, RELEASEDIR = (
    *(1, 2, 3, 10, 11, 17, 18, 26, 27, 28, 29),
)
BATCH_FORGET, INTERRUPT, DESTROY = 42, 36, 38
_HEADER = struct.Struct("<IIQQIIIHH")
_ATTRIBUTES = struct.Struct("<6Q10I")


class Mirror:
    """Serves requests. A node is known by the number of the path that it was found by."""

    def __init__(self, source: str) -> None:
        self._paths = [b"", os.fsencode(source)]
        self._numbers = {self._paths[1]: 1}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            LOOKUP: self._lookup,
            GETATTR: lambda node, body: struct.pack("<QII", 0, 0, 0) + _attributes(self._paths[node]),
            UNLINK: lambda node, body: self._done(os.unlink(self._child(node, body))),
            RMDIR: lambda node, body: self._done(os.rmdir(self._child(node, body))),
            STATFS: lambda node, body: bytes(80),
            INIT: lambda node, body: struct.pack("<4I2H2I2HI7I", 7, 31, 0, 0, 16, 12, 65536, 1, *(0,) * 10),
            OPENDIR: lambda node, body: bytes(16),
            READDIR: self._read_directory,
            RELEASE: lambda node, body: b"",
            RELEASEDIR: lambda node, body: b"",
            DESTROY: lambda node, body: b"",
        }

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; empty where it wants none."""
        _, operation, unique, node, *_ = _HEADER.unpack_from(request)
        if operation in (FORGET, BATCH_FORGET, INTERRUPT):
            return b""
        failure, body = 0, b""
        try:
            if operation not in self._answers:
                raise OSError(errno.ENOSYS, "no such operation")
            body = self._answers[operation](node, request[_HEADER.size :])
        except OSError as error:
            failure = error.errno or errno.EIO
        return struct.pack("<IiQ", 16 + len(body), -failure, unique) + body

    def _child(self, node: int, body: bytes) -> bytes:
        return self._paths[node] + b"/" + body.partition(b"\0")[0]

    def _done(self, _: None) -> bytes:
        return b""

    def _lookup(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body)
        attributes = _attributes(path)
        if path not in self._numbers:
            self._numbers[path] = len(self._paths)
            self._paths.append(path)
        return struct.pack("<4Q2I", self._numbers[path], 0, 0, 0, 0, 0) + attributes

    def _read_directory(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = b""
        for number, name in enumerate(sorted(os.listdir(self._paths[node]))[offset:], offset + 1):
            entry = struct.pack("<QQII", number, number, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries


def _attributes(path: bytes) -> bytes:
    stat = os.lstat(path)
    seconds = [time // 10**9 for time in (stat.st_atime_ns, stat.st_mtime_ns, stat.st_ctime_ns)]
    rests = [time % 10**9 for time in (stat.st_atime_ns, stat.st_mtime_ns, stat.st_ctime_ns)]
    owner = (stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, 0, 4096, 0)
    return _ATTRIBUTES.pack(stat.st_ino, stat.st_size, stat.st_blocks, *seconds, *rests, *owner)


def main(source: str, point: str) -> None:
    """Mount, and serve until unmounted."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    mount = subprocess.Popen(["mount", "-i", "-t", "fuse.mirror", "-o", options, "mirror", point], pass_fds=[fd])
    mirror = Mirror(source)
    while True:
        try:
            request = os.read(fd, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue  # a request that was given up meanwhile
            if error.errno == errno.EPERM and not mount.poll():
                continue  # not mounted yet
            break
        if answer := mirror.answer(request):
            try:
                os.write(fd, answer)
            except FileNotFoundError:
                continue
    sys.exit(mount.wait())


if __name__ == "__main__":
    main(*sys.argv[1:])
