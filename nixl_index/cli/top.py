"""`nixl-index top`: what comes and goes, as it happens."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from nixl_index.cleaner import Cleaner
from nixl_index.cli import text
from nixl_index.cli.exits import FINE
from nixl_index.cli.opening import opened
from nixl_index.cli.options import add_watermarks, checked, positive, seconds, watermarks
from nixl_index.health import Health
from nixl_index.index import GroupIndex
from nixl_index.watermarks import Watermarks

HELP = "a live view: what comes and goes, how full the disks are, what is the oldest"
DESCRIPTION = """\
Scan the base dirs, then follow them: what comes and goes in a second, how full each
disk is against the watermarks, which groups would be evicted next, and whether the
index is well. Ctrl-C ends it.

With `rich` (pip install 'nixl-index[cli]') and on a terminal it is a screen that is
drawn anew; else a line each time. It changes nothing: the watermarks are only shown."""
EXAMPLE = """\
example:
  nixl-index top /mnt/disk0/l3 /mnt/disk1/l3 --high 80 --low 70
  nixl-index top /mnt/disk0/l3 --interval 10 --iterations 6 > minute.log"""

OLDEST = 8
"""How many groups are shown."""


@dataclass(frozen=True, slots=True)
class BaseRow:
    """A base dir. `usage` is that of its file system, or of the capacity, in percent; None where it is unknown."""

    path: str
    shards: int
    nbytes: int
    usage: float | None
    frozen: str


@dataclass(frozen=True, slots=True)
class OldGroup:
    """A group that would be evicted soon; its age is in seconds."""

    key: str
    age: float
    shards: int
    nbytes: int


class Rates(NamedTuple):
    """What came and went in a second."""

    shards_in: float
    bytes_in: float
    shards_out: float
    bytes_out: float


@dataclass(frozen=True, slots=True)
class View:
    """All that one look shows; rates are since the look before."""

    high: float
    low: float
    rates: Rates
    nbytes: int
    bases: tuple[BaseRow, ...]
    oldest: tuple[OldGroup, ...]
    health: Health
    problem: str


class Lookout:
    """Looks at an index, time and again. A look waits for the scout."""

    def __init__(self, index: GroupIndex, watermarks: Watermarks, capacity: int | None) -> None:
        self._index = index
        self._follower = index._follower
        self._watermarks = watermarks
        self._cleaner = Cleaner(index, watermarks.high, watermarks.low, capacity=capacity)
        self._before = time.monotonic(), self._counts()

    def _counts(self) -> tuple[int, int, int, int]:
        flow = self._follower.flow
        return flow.shards_in, flow.bytes_in, flow.shards_out, flow.bytes_out

    def look(self) -> View:
        """The present view. Raises what keeps the index from answering."""
        problems: list[str] = []
        try:
            usage = self._cleaner.usage(self._cleaner.measure(problems))
        except TimeoutError as error:
            usage, problems = {}, [str(error)]
        now, counts = time.monotonic(), self._counts()
        (then, earlier), self._before = self._before, (now, counts)
        rates = [(count - before) / (now - then) for count, before in zip(counts, earlier, strict=True)]
        health = self._index.health()
        return View(
            self._watermarks.high,
            self._watermarks.low,
            Rates(*rates),
            nbytes=self._index.nbytes,
            bases=tuple(self._bases(usage)),
            oldest=tuple(self._oldest()),
            health=health,
            problem="; ".join(problems) or health.last_error,
        )

    def _bases(self, usage: dict[str, float]) -> Iterator[BaseRow]:
        totals = self._follower.order.totals
        for number, base in enumerate(self._follower.bases):
            shards, nbytes = totals.on((number,))
            yield BaseRow(base.path, shards, nbytes, usage.get(base.path), base.frozen)

    def _oldest(self) -> Iterator[OldGroup]:
        with self._follower.lock:
            oldest = self._follower.order.after(None, OLDEST)
        now = time.time_ns()
        for group in map(self._follower.group, oldest):
            yield OldGroup(group.key, (now - group.recency_ns) / 1e9, len(group), group.disk_bytes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    add_watermarks(parser, required=False)
    parser.add_argument(
        "--interval",
        type=checked(seconds),
        default=2.0,
        metavar="SECONDS",
        help="how often to look (default: 2)",
    )
    parser.add_argument(
        "--iterations", type=checked(positive), metavar="N", help="end after so many looks (default: go on)"
    )


def run(options: argparse.Namespace) -> int:
    """The command."""
    marks = watermarks(options)
    with opened(options) as index:
        lookout = Lookout(index, marks, options.capacity)
        with _display() as show:
            for looks in count(1):
                time.sleep(options.interval)
                show(lookout.look())
                if looks == options.iterations:
                    break
    return FINE


@contextmanager
def _display() -> Iterator[Callable[[View], None]]:
    if sys.stdout.isatty():
        try:
            from nixl_index.cli import live
        except ImportError:
            pass
        else:
            with live.screen() as show:
                yield show
            return
    print(_PLAIN.format(*_HEADER), flush=True)
    yield lambda view: print(_PLAIN.format(*_cells(view)), flush=True)


_HEADER = ("time", "groups", "shards", "bytes", "in/s", "bytes", "out/s", "bytes", "usage", "oldest", "state")
_PLAIN = "{:8}  {:>11}  {:>11}  {:>10}  {:>7}  {:>10}  {:>7}  {:>10}  {:>7}  {:>8}  {}"


def _cells(view: View) -> list[str]:
    """One line: the usage is that of the fullest base dir."""
    usages = [base.usage for base in view.bases if base.usage is not None]
    problem = f": {text.printable(view.problem)}" if view.problem and view.health.state != "live" else ""
    return [
        time.strftime("%H:%M:%S"),
        f"{view.health.groups:,}",
        f"{view.health.shards:,}",
        text.size(view.nbytes),
        *(f"{view.rates.shards_in:,.0f}", text.size(view.rates.bytes_in)),
        *(f"{view.rates.shards_out:,.0f}", text.size(view.rates.bytes_out)),
        text.percent(max(usages, default=None)),
        text.age(view.oldest[0].age) if view.oldest else "-",
        f"{view.health.state}{problem}",
    ]
