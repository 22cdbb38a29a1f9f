"""A host's main thread: one that never rests, as a server's scheduler loop, or one that sleeps.

The loop makes no system call (both clocks are read in user space), so it gives the GIL away only when it has to. It
counts its turns, notes each gap between two turns that is too long, and looks at a counter every millisecond. No thread
samples it: that would want the GIL as well, and be part of what is measured.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

SAMPLE_SECONDS = 0.001
PAUSE_SECONDS = 0.0002
"""Gaps above this are pauses. A turn takes about a microsecond."""
_WORK = (None,) * 20

T = TypeVar("T")


def _zero() -> int:
    return 0


class Run:
    """What a stretch of the main thread saw. Arrays of numbers, which the garbage collector need not walk."""

    def __init__(self) -> None:
        self.times = array("d")
        self.counts = array("q")
        self.turns = array("q")
        self.pauses = array("d")
        self.pause_times = array("d")

    def sample(self, now: float, count: int, turns: int) -> None:
        """One look at the counter."""
        self.times.append(now)
        self.counts.append(count)
        self.turns.append(turns)

    def rate(self, start: float, end: float) -> float:
        """Turns a second between two times."""
        first = bisect_left(self.times, start)
        last = min(bisect_left(self.times, end), len(self.times) - 1)
        if last <= first:
            return 0.0
        return (self.turns[last] - self.turns[first]) / (self.times[last] - self.times[first])

    def pauses_between(self, start: float, end: float) -> list[float]:
        """The pauses, in seconds, that ended between two times."""
        return [gap for gap, at in zip(self.pauses, self.pause_times, strict=True) if start <= at <= end]

    def spin(self, done: Callable[[], bool], count: Callable[[], int] = _zero) -> None:
        """Turn until `done`, which is asked with each sample."""
        clock = time.monotonic
        turns = self.turns[-1] if self.turns else 0
        last = clock()
        due = last
        while True:
            now = clock()
            if now - last > PAUSE_SECONDS:
                self.pauses.append(now - last)
                self.pause_times.append(now)
            last = now
            if now >= due:
                self.sample(now, count(), turns)
                if done():
                    return
                due = now + SAMPLE_SECONDS
            for _ in _WORK:
                pass
            turns += 1

    def rest(self, done: Callable[[], bool], count: Callable[[], int] = _zero) -> None:
        """Sleep until `done`, which is asked with each sample."""
        while True:
            self.sample(time.monotonic(), count(), 0)
            if done():
                return
            time.sleep(SAMPLE_SECONDS)

    def until(self, done: Callable[[], bool], spinning: bool, count: Callable[[], int] = _zero) -> None:
        """`spin` or `rest`."""
        (self.spin if spinning else self.rest)(done, count)


def beside(run: Run, spinning: bool, work: Callable[[], T], count: Callable[[], int] = _zero) -> tuple[T, float]:
    """Do some work in a thread while the main thread goes on. Returns what came of it, and the seconds it took."""
    results: list[tuple[T, float]] = []
    errors: list[BaseException] = []

    def body() -> None:
        start = time.monotonic()
        try:
            results.append((work(), time.monotonic() - start))
        except BaseException as error:  # noqa: BLE001 - it is raised again, on the main thread
            errors.append(error)

    thread = threading.Thread(target=body, name="bench-work")
    thread.start()
    run.until(lambda: bool(results or errors), spinning, count)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def spun_alone(seconds: float) -> Run:
    """What the main thread sees that spins for so long with nothing beside it."""
    run, until = Run(), time.monotonic() + seconds
    run.spin(lambda: time.monotonic() > until)
    return run
