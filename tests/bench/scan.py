"""`scan`: the first scan of a tree, until the index is ready, beside a quiet and a spinning host."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

from nixl_index import GroupIndex, KeyScheme
from tests.bench import peer, rescan
from tests.bench.harness import Settings, child
from tests.bench.rows import Result
from tests.bench.spin import Run, beside, spun_alone
from tests.bench.trees import fill

_ALONE_SECONDS = 1.0


class Told(TypedDict):
    """What the host of one scan has to say."""

    shards: int
    seconds: float
    turn_rate: float
    turn_rate_alone: float


def run(settings: Settings) -> Iterator[Result]:
    """First those that only read, so that nobody is the first to touch the tree."""
    bases, groups = settings.tree(settings.shards), 2 if settings.quick else 50
    rescan.list_names(bases)
    names = _seconds(lambda: rescan.list_names(bases))
    reading = _seconds(lambda: rescan.read(bases, KeyScheme()))
    tick = None
    if settings.peer:
        tick = peer.tick(settings.peer, bases, groups)
        fill(bases, groups)
    quiet, spinning = (_scan(bases, spin, settings.shards) for spin in (False, True))
    seconds = quiet["seconds"]
    if tick:
        yield Result.of("scan.quiet.peer", seconds, "s", tick, against=f"a tick of {peer.NAME}")
    yield Result.of("scan.quiet.rescan", seconds, "s", reading, against="the rescan's reading")
    yield Result.of("scan.quiet.names", seconds, "s", names, against="a listing of names alone")
    yield Result.of("scan.spinning", spinning["seconds"], "s", seconds, against="beside a quiet host")
    rates = spinning["turn_rate"], "turns/s", spinning["turn_rate_alone"]
    yield Result.of("scan.spinning.host_rate", *rates, against="spinning alone")


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _scan(bases: Sequence[str], spinning: bool, shards: int) -> Told:
    told: Told = child("scan", bases, spinning)
    if told["shards"] != shards:
        raise RuntimeError(f"the scan found {told['shards']} shards, not {shards}")
    return told


def measure(bases: Sequence[str], spinning: bool) -> Told:
    """In a process of its own: no index before it has left the memory as it likes it."""
    alone = spun_alone(_ALONE_SECONDS) if spinning else Run()
    run, start = Run(), time.monotonic()
    index, seconds = beside(run, spinning, lambda: GroupIndex.watch(*bases))
    with index:
        return {
            "shards": index.shards,
            "seconds": seconds,
            "turn_rate": run.rate(start, start + seconds),
            "turn_rate_alone": alone.rate(0.0, start),
        }


if __name__ == "__main__":
    print(json.dumps(measure(*json.loads(sys.argv[1]))))
