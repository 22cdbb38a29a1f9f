"""Which directory each inotify watch belongs to. Used by the scout alone."""

from __future__ import annotations

from collections.abc import Iterator

from nixl_index import inotify, records
from nixl_index.disk import Directory

Event = tuple[Directory, int, bytes]
"""The directory, the mask of what happened, and to which name in it; without a name, to the directory itself."""


class Watches:
    """inotify, by directory. The kernel knows a directory by its inode: after a rename, the watch of the old path is
    the one of the new."""

    def __init__(self, reads: bool) -> None:
        self._bucket_mask = inotify.BUCKET_MASK | (inotify.READ if reads else 0)
        self._inotify = inotify.Inotify()
        self._directories: dict[int, Directory] = {}
        self._retired: set[int] = set()
        self.losses: list[str] = []
        """Why events were lost, since somebody last took note."""

    def fileno(self) -> int:
        """The inotify file descriptor, for poll."""
        return self._inotify.fileno()

    def close(self) -> None:
        """Give up every watch. Idempotent."""
        self._inotify.close()

    def __len__(self) -> int:
        return len(self._directories)

    def add(self, directory: Directory) -> None:
        """Watch the directory at this path. Idempotent. Raises OSError."""
        mask = self._bucket_mask if directory.is_bucket else inotify.LEVEL_MASK
        if directory.parent is None:
            mask |= inotify.BASE_MASK
        wd = self._inotify.add(directory.path, mask)
        if directory.wd != wd:
            self.remove(directory)
        holder = self._directories.get(wd)
        if holder is not None:
            holder.wd = -1
        self._directories[wd] = directory
        directory.wd = wd

    def remove(self, directory: Directory) -> None:
        """Stop watching the directory. One that is not watched is fine."""
        if directory.wd >= 0:
            del self._directories[directory.wd]
            self._retired.add(directory.wd)  # events that wait already still come, and then one that says it is over
            self._inotify.remove(directory.wd)
            directory.wd = -1

    def read(self) -> Iterator[Event]:
        """Every event that waits now, in order; losses are noted on the way."""
        for wd, mask, name in self._inotify.read():
            directory = self._directories.get(wd)
            if directory is None:
                self._on_stray(wd, mask)
                continue
            if mask & inotify.READ and (not name or mask & inotify.IS_DIRECTORY):
                continue  # a listing, our own too
            if mask & inotify.IGNORED:
                del self._directories[wd]
                directory.wd = -1
            yield directory, mask, name

    def _on_stray(self, wd: int, mask: int) -> None:
        if mask & inotify.OVERFLOW:
            self._retired.clear()  # the queue was full: what would have ended them may be lost too
            self.losses.append(records.OVERFLOW)
        elif wd not in self._retired:
            self.losses.append("an event of an unknown watch")
        elif mask & inotify.IGNORED:
            self._retired.discard(wd)
