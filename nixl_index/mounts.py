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


def remote_kind(path: bytes, lines: Iterable[bytes] | None = None) -> str:
    """The file system's type, where it is of a kind that other machines (or a FUSE daemon) write to without an inotify
    event here; else empty. `lines` are those of mountinfo (see proc(5)), read unless given. Raises OSError."""
    if lines is None:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.readlines()
    best, kind = b"", ""
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), fields.split()[4])
        below = path == point or path.startswith(point.rstrip(b"/") + b"/")
        if below and len(point) >= len(best):  # a later line of the same mount point covers the earlier one
            best, kind = point, rest.split()[0].decode(errors="replace")
    return kind if kind in _REMOTE or kind.split(".")[0] in ("fuse", "fuseblk") else ""
