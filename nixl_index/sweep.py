"""What the listings did not see: suspects, which the scout looks at. Nothing is dropped on suspicion.

A listing numbers the shards that it sees (a mark in their records). When the scout says that its listings are complete,
one pass over the index, in steps of about a millisecond, finds the shards with another mark.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic

from nixl_index.group import Place
from nixl_index.order import GroupOrder
from nixl_index.records import Listing, Origin, Phase

LOOK_NAMES = 2_000
"""How many suspects the scout is given at a time."""
_STEP_GROUPS = 128
MENDING = (Origin.RECONCILE, Origin.SCRUB)
"""Listings that should find nothing new: what they find was missed."""

Look = Callable[[list[int], list[bytes], Callable[[], None]], None]
"""Have the scout look at these names (directories, names), then call back on the writer's thread."""


class Sweeper:
    """Runs on the writer's thread, but for `wait`. `lock` is the one of the order; `mending` is where it notes in which
    directories a suspect that is gone was missed by the events; `post` asks for a call of `step`."""

    def __init__(
        self,
        lock: threading.Lock,
        order: GroupOrder,
        places: Sequence[Place],
        mending: set[int],
        look: Look,
        post: Callable[[], None],
    ) -> None:
        self._mending = mending
        self._lock = lock
        self._order = order
        self._places = places
        self._look = look
        self._post = post
        self._listed: dict[int, bool] = {}
        self._steps: Iterator[bool] | None = None
        self._due = self._done = 0
        self._ended = False
        self._changed = threading.Condition()

    @property
    def pending(self) -> bool:
        """Is there a sweep that is not over?"""
        return self._done < self._due

    def on_listing(self, listing: Listing) -> None:
        """A listing began or ended."""
        if listing.phase == Phase.BEGIN:
            with self._lock:
                self._order.begin_listing(listing.directory)
            self._listed.pop(listing.directory, None)
        elif listing.phase == Phase.DONE and listing.known:
            self._listed[listing.directory] = listing.origin in MENDING

    def on_sweep(self) -> None:
        """The listings are complete."""
        self._due += 1
        if not self._steps:
            self._begin()

    def on_crawled(self) -> None:
        """Everything was listed. Sweeps that were given up before are covered by the one that follows it, if any."""
        if not self._steps and not self._listed:
            self._finish(self._due)

    def step(self) -> None:
        """One step of the sweep that is under way. It posts the next, unless it waits for the scout's look."""
        if self._steps and next(self._steps, False):
            self._post()

    def abort(self) -> None:
        """The listings are void; those that follow have a sweep of their own."""
        self._steps = None
        self._listed = {}
        self._mending.clear()

    def end(self) -> None:
        """There will be no more sweeps: nobody waits any longer."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, until: float | None) -> bool:
        """Wait until the sweeps that are due now are over, and those that came due by what they found: a suspect's
        bucket may have been replaced, and is listed first. False after `until`, in seconds of `time.monotonic`."""
        with self._changed:
            for _ in range(2):
                due = self._due
                seconds = None if until is None else max(0.0, until - monotonic())
                if not self._changed.wait_for(lambda due=due: self._done >= due or self._ended, seconds):  # type: ignore[misc]
                    return False
        return True

    def _begin(self) -> None:
        listed, self._listed = self._listed, {}
        if not listed:
            self._finish(self._due)
            return
        self._mending.update(directory for directory, mending in listed.items() if mending)
        self._steps = self._sweep(listed, self._due)
        self._post()

    def _sweep(self, listed: dict[int, bool], due: int) -> Iterator[bool]:
        """Yields False where it waits for the scout, whose answer posts the next step."""
        directories: list[int] = []
        names: list[bytes] = []
        with self._lock:
            keys = iter(list(self._order.keys()))
        while chunk := list(islice(keys, _STEP_GROUPS)):
            with self._lock:
                for key in chunk:
                    for directory, tail in self._order.unseen(key, listed):
                        directories.append(directory)
                        names.append(os.fsencode(self._places[directory].name_of(key, tail)))
            if len(names) >= LOOK_NAMES:
                self._look(directories, names, self._post)
                directories, names = [], []
                yield False
            else:
                yield True
        if names:
            self._look(directories, names, self._post)
            yield False
        self._steps = None
        self._mending.clear()
        self._finish(due)
        if self.pending:
            self._begin()

    def _finish(self, due: int) -> None:
        with self._changed:
            self._done = due
            self._changed.notify_all()
