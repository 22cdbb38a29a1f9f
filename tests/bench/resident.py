"""`resident`: what an index takes that is only there: memory, its scout's memory, garbage collections; and a touch."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sortedcontainers import SortedDict

from nixl_index import GroupIndex, KeyScheme
from tests.bench import memory
from tests.bench.harness import Settings, child
from tests.bench.rows import Result, median
from tests.bench.trees import RANKS, read_disk

_COLLECTIONS = 5
_TOUCHED, _TOUCHES = 1_000, 9


def run(settings: Settings) -> Iterator[Result]:
    """Eight shards a group and one, each in processes of their own; then the scouts of few and of many buckets."""
    yield from _hosts(settings, RANKS, settings.tree(settings.shards))
    few = settings.tree(settings.shards, ranks=1, disks=1)
    yield from _hosts(settings, 1, few)
    many = settings.tree(settings.shards // 10, disks=16)
    nothing = _nothing()
    for bases in (few, many):
        told = child("resident", "scout", bases)
        resident, unit, name = told.pop("resident"), "MB", f"resident.scout.{256 * len(bases)}_buckets"
        yield Result.of(name, resident, unit, nothing, against="an interpreter that does nothing", **told)


def _hosts(settings: Settings, ranks: int, bases: Sequence[str]) -> Iterator[Result]:
    ours, theirs = child("resident", "index", bases), child("resident", "dict", bases)
    for told in (ours, theirs):
        if told["shards"] != settings.shards:
            raise RuntimeError(f"{told['shards']} shards were found, not {settings.shards}")
    for figure, unit, scale, against in (
        ("host", "bytes/shard", 1 / settings.shards, "a dict of mtimes by path"),
        ("collection", "ms", 1e3, "a dict of mtimes by path"),
        ("touch", "us/key", 1e6, "a bare SortedDict"),
    ):
        name = f"resident.{figure}.{ranks}_a_group"
        yield Result.of(name, ours[figure] * scale, unit, theirs[figure] * scale, against=against)


def _nothing() -> float:
    """MB of an interpreter that does nothing."""
    code = "print(next(line for line in open('/proc/self/status') if line.startswith('VmRSS')).split()[1])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, check=True)
    return int(done.stdout) * 1024 / 1e6


def index_at_rest(bases: Sequence[str]) -> dict[str, Any]:
    """The index, and nothing else in the process."""
    gc.collect()
    before = memory.resident()
    with GroupIndex.watch(*bases) as index:
        gc.collect()
        told = {"host": memory.resident() - before, "shards": index.shards, "collection": _collection_seconds()}
        return told | {"touch": _touch_seconds([group.key for group in index], index.touch)}


def scout_at_rest(bases: Sequence[str]) -> dict[str, float]:
    """The scout after the first scan, in MB."""
    with GroupIndex.watch(*bases) as index:
        pid = index.health().scout_pid
        return {read.__name__: read(pid) / 1e6 for read in (memory.resident, memory.peak, memory.private)}


def dict_at_rest(bases: Sequence[str]) -> dict[str, Any]:
    """What a user would write first: a dict by path. And an order of groups alone, for what a touch has to do."""
    gc.collect()
    before = memory.resident()
    shards = read_disk(bases)
    gc.collect()
    told = {"host": memory.resident() - before, "shards": len(shards), "collection": _collection_seconds()}
    scheme = KeyScheme()
    recencies: dict[str, int] = {}
    for path, mtime in shards.items():
        key = scheme(path.rpartition("/")[2])
        assert key is not None
        recencies[key] = max(mtime, recencies.get(key, 0))
    order = SortedDict({(mtime, key): b"" for key, mtime in recencies.items()})

    def touch(keys: Sequence[str]) -> None:
        now = time.time_ns()
        for key in keys:
            packed = order.pop((recencies[key], key))
            recencies[key] = now
            order[now, key] = packed

    return told | {"touch": _touch_seconds(list(recencies), touch)}


def _collection_seconds() -> float:
    seconds = []
    for _ in range(_COLLECTIONS):
        start = time.perf_counter()
        gc.collect()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _touch_seconds(keys: Sequence[str], touch: Callable[[Sequence[str]], object]) -> float:
    """Seconds a key: the median of some calls with random keys."""
    chance, seconds = random.Random(1), []
    for _ in range(_TOUCHES):
        some = chance.sample(keys, min(_TOUCHED, len(keys)))
        start = time.perf_counter()
        touch(some)
        seconds.append((time.perf_counter() - start) / len(some))
    return median(seconds)


if __name__ == "__main__":
    variant, bases = json.loads(sys.argv[1])
    print(json.dumps({"index": index_at_rest, "dict": dict_at_rest, "scout": scout_at_rest}[variant](bases)))
