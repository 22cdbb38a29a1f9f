"""Which kind of file system a path is on, by `/proc/self/mountinfo`. Used by the scout alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

_REMOTE = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "smbfs", "virtiofs", "vxfs", "wekafs"),
    )
)
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def place_of(path: bytes) -> tuple[bytes, bytes]:
    """The device that a path is on, and the path on that device: the same by whatever mount it is named. Raises
    OSError."""
    best = (b"", b"", b"")
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            _, _, device, *escaped = line.split(b" ")[:5]
            root, point = (_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), part) for part in escaped)
            if (path == point or path.startswith(point.rstrip(b"/") + b"/")) and len(point) >= len(best[2]):
                best = (device, root, point)
    device, root, point = best
    return device, (root.rstrip(b"/") + b"/" + path[len(point) :].lstrip(b"/")).rstrip(b"/")


def remote_kind(path: bytes, lines: Iterable[bytes] | None = None) -> str:
    """The file system's type, where it is of a kind that other machines (or a FUSE daemon) write to without an inotify
    event here; else empty. `lines` are those of mountinfo (see proc(5)), read unless given. Raises OSError."""
    if lines is None:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.readlines()
    mounts: dict[bytes, list[tuple[bytes, bytes, str]]] = {}  # by the number of the mount that they are mounted in
    numbers = set()
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        number, parent, _device, _root, escaped = fields.split(b" ")[:5]
        point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), escaped)
        numbers.add(number)
        if path == point or path.startswith(point.rstrip(b"/") + b"/"):
            mounts.setdefault(parent, []).append((number, point, rest.split()[0].decode(errors="replace")))
    # Down from the root, as a path is walked: a mount on a shorter path hides an older one on a longer path.
    kind, at = "", next((parent for parent in mounts if parent not in numbers), b"")
    while below := [mount for mount in mounts.pop(at, []) if mount[0] != at]:
        at, _, kind = min(below, key=lambda mount: len(mount[1]))
    return kind if kind in _REMOTE or kind.split(".")[0] in ("fuse", "fuseblk") else ""
