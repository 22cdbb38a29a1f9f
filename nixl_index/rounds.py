"""What the scout does by the clock: checks of the bases, polls of what makes no events, the slow reconcile."""

from __future__ import annotations

from time import monotonic

from nixl_index.disk import Directory
from nixl_index.records import Origin
from nixl_index.tree import Tree

CHECK_SECONDS = 1.0
"""How often each base is checked for being the directory that was indexed; and, after a mount, each bucket."""
_MOUNT_SECONDS = 0.1
"""How soon after one check another one may come, however much is mounted."""


class Rounds:
    """Keeps the times, and does what is due. `rescan_interval` of 0 means no slow reconcile. Times are in seconds."""

    def __init__(self, tree: Tree, poll_interval: float, rescan_interval: float) -> None:
        self._tree = tree
        self._poll_interval = poll_interval
        self._rescan_interval = rescan_interval
        self._scrubbing: list[Directory] = []
        self._mounted = False
        now = self._last_check = monotonic()
        self._next_check = now + CHECK_SECONDS
        self._next_poll = now + poll_interval
        self._next_scrub = now + self._scrub_seconds()
        self._doubt_seconds = CHECK_SECONDS
        self._next_doubt = 0.0

    @property
    def next(self) -> float:
        """When something is due, in seconds of `time.monotonic`."""
        return min(self._next_check, self._next_poll, self._next_scrub)

    def on_mount(self) -> None:
        """Something was mounted or unmounted, anywhere: it makes no event of its own."""
        self._mounted = True
        self._next_check = min(self._next_check, self._last_check + _MOUNT_SECONDS)

    def work(self, now: float) -> None:
        """Do what is due."""
        if now >= self._next_check:
            self._last_check, self._next_check = now, now + CHECK_SECONDS
            for base in self._tree.guard.bases:
                self._tree.guard.check(base)
            if self._mounted:
                self._mounted = False
                self._tree.check_directories()
        if now >= self._next_poll:
            self._next_poll = now + self._poll_interval
            self._poll()
        if now >= self._next_doubt and self._next_check > now:
            self._look_again(now)
        if now >= self._next_scrub:
            self._scrub()
            self._next_scrub = now + self._scrub_seconds()

    def _poll(self) -> None:
        """Directories without a watch, and all of a base on a remote file system."""
        tree = self._tree
        remote = [directory for base in tree.guard.bases if base.remote for directory in base.root.tree()]
        for directory in dict.fromkeys([*tree.unwatched, *remote]):
            tree.visit(directory, Origin.POLL)

    def _look_again(self, now: float) -> None:
        """Directories in doubt: soon, and if that does not help, less often."""
        doubtful = self._tree.errors.doubtful
        if not doubtful:
            self._doubt_seconds, self._next_doubt = CHECK_SECONDS, now + CHECK_SECONDS
            return
        self._doubt_seconds = min(self._poll_interval, 2 * self._doubt_seconds)
        self._next_doubt = now + self._doubt_seconds
        for directory in list(doubtful):
            self._tree.visit(directory, Origin.POLL)

    def _scrub(self) -> None:
        """The next directory. A round of all of them is one reconcile, with one sweep."""
        if not self._scrubbing:
            self._scrubbing = [directory for base in self._tree.guard.bases for directory in base.root.tree()]
        directory = self._scrubbing.pop()
        if not directory.base.remote and directory not in self._tree.unwatched:  # those are polled
            self._tree.visit(directory, Origin.SCRUB)
        if not self._scrubbing:
            self._tree.sweep_after_scans()

    def _scrub_seconds(self) -> float:
        directories = sum(1 for base in self._tree.guard.bases for _ in base.root.tree())
        return self._rescan_interval / directories or float("inf")
