"""How far the first scan is, for whoever waits for it. No lock, no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from nixl_index.bases import BaseView
from nixl_index.group import Place
from nixl_index.logs import EventLog
from nixl_index.records import Listing, Phase
from nixl_index.totals import Totals

logger = logging.getLogger(__name__)

REPORT_SECONDS = 0.1
"""The callback is called no more often than this, but for the last time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the first scan stands. Times are in seconds."""

    shards: int
    """In the index so far."""
    buckets_done: int
    buckets_known: int
    """Grows while base dirs, and levels above the buckets, are still to be listed."""
    seconds: float
    """Since the start."""
    rate: float
    """Shards a second, since the start."""
    remaining: float | None
    """An estimate, as if base dirs that are still to come were like the others. None while nothing is known to go by,
    and with layouts of several levels: how many buckets they have is known only in the end."""
    done: bool
    """The first scan is over, and the index is about to be ready: the last call."""


OnProgress = Callable[[Progress], object]


class FirstScan:
    """Reports to a callback, if there is one. Runs on the observer's thread alone; reads what that thread writes."""

    def __init__(
        self,
        callback: OnProgress | None,
        log: EventLog,
        totals: Totals,
        places: Sequence[Place],
        bases: Sequence[BaseView],
        depth: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._callback = callback
        self._log = log
        self._totals = totals
        self._places = places
        self._bases = bases
        self._depth = depth
        self._clock = clock
        self._start = clock()
        self._due = 0.0
        self._listed: set[int] = set()

    def on_listing(self, listing: Listing) -> None:
        """A listing began or ended."""
        if self._callback and listing.phase != Phase.BEGIN:
            self._listed.add(listing.directory)

    def restart(self) -> None:
        """Everything is listed from the start."""
        self._listed.clear()

    def report(self, done: bool = False) -> None:
        """Call the callback, if that is due; the last time with `done`."""
        if self._callback is None:
            return
        now = self._clock()
        if now < self._due and not done:
            return
        self._due = now + REPORT_SECONDS
        callback, progress = self._callback, self._progress(now - self._start, done)
        if done:
            self._callback = None
            self._listed.clear()
        try:
            callback(progress)
        except Exception as error:  # noqa: BLE001 - whatever a caller's callback raises
            text = f"on_progress failed, and is called on all the same: {error!r}"
            self._log.say(logger, "on_progress_failed", text, lasts=True, error=error)

    def _progress(self, seconds: float, done: bool) -> Progress:
        shards = self._totals.count
        return Progress(
            shards=shards,
            buckets_done=len(self._listed),
            buckets_known=len(self._places),
            seconds=seconds,
            rate=shards / seconds if seconds else 0.0,
            remaining=0.0 if done else self._remaining(seconds),
            done=done,
        )

    def _remaining(self, seconds: float) -> float | None:
        listed, known = len(self._listed), len(self._places)
        if not listed or self._depth > 1:
            return None
        begun = self._totals.shards  # bases are listed in turn, so those behind the last of these are still to come
        to_come = sum(not base.frozen for base in self._bases[max(begun) + 1 :])
        return seconds * (known * (1 + to_come / len(begun)) / listed - 1)
