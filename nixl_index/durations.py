"""How long something took, each time: a histogram in plain numbers. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""The upper bounds of the buckets, in seconds; one more bucket has none."""


@dataclass(frozen=True, slots=True)
class Durations:
    """A snapshot: how often it was, for how many seconds in all, and how often within each bucket alone."""

    count: int = 0
    seconds: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)

    def plus(self, seconds: float) -> Durations:
        """With one more. O(buckets)."""
        buckets = list(self.buckets)
        buckets[bisect_left(BOUNDS, seconds)] += 1
        return Durations(self.count + 1, self.seconds + seconds, tuple(buckets))
