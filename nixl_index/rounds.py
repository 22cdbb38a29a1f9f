"""What the scout does by the clock: checks of the bases, polls of what makes no events, the slow reconcile."""

from __future__ import annotations

from time import monotonic

from nixl_index.disk import Directory
from nixl_index.records import Origin
from nixl_index.tree import Tree

CHECK_SECONDS = 1.0
"""How often each base is checked for being the directory that was indexed: most mounts over it make no event."""


class Rounds:
    """Keeps the times, and does what is due. `rescan_interval` of 0 means no slow reconcile. Times are in seconds."""

    def __init__(self, tree: Tree, poll_interval: float, rescan_interval: float) -> None:
        self._tree = tree
        self._poll_interval = poll_interval
        self._rescan_interval = rescan_interval
        self._scrubbing: list[Directory] = []
        now = monotonic()
        self._next_check = now + CHECK_SECONDS
        self._next_poll = now + poll_interval
        self._next_scrub = now + self._scrub_seconds()

    @property
    def next(self) -> float:
        """When something is due, in seconds of `time.monotonic`."""
        return min(self._next_check, self._next_poll, self._next_scrub)

    def check_now(self) -> None:
        """Something was mounted or unmounted."""
        self._next_check = 0.0

    def work(self, now: float) -> None:
        """Do what is due."""
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            for base in self._tree.bases:
                self._tree.check(base)
        if now >= self._next_poll:
            self._next_poll = now + self._poll_interval
            self._poll()
        if now >= self._next_scrub:
            self._scrub()
            self._next_scrub = now + self._scrub_seconds()

    def _poll(self) -> None:
        """Directories without a watch, and all of a base on a remote file system."""
        tree = self._tree
        remote = [directory for base in tree.bases if base.remote for directory in base.root.tree()]
        for directory in dict.fromkeys([*tree.unwatched, *remote]):
            tree.visit(directory, Origin.POLL)

    def _scrub(self) -> None:
        """The next directory. A round of all of them is one reconcile, with one sweep."""
        if not self._scrubbing:
            self._scrubbing = [directory for base in self._tree.bases for directory in base.root.tree()]
        self._tree.visit(self._scrubbing.pop(), Origin.SCRUB)
        if not self._scrubbing:
            self._tree.sweep_after_scans()

    def _scrub_seconds(self) -> float:
        directories = sum(1 for base in self._tree.bases for _ in base.root.tree())
        return self._rescan_interval / directories or float("inf")
