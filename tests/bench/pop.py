"""`pop`: what it costs to pop the oldest group of a bare order, small and large: O(log n) or not."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from time import perf_counter

from nixl_index.order import GroupOrder
from tests.bench.harness import Result, Settings, median
from tests.bench.trees import FIRST_MTIME, MODEL, RANKS

_DIRECTORIES = 512
_ROUNDS, _POPS = 9, 100


def filled(shards: int) -> GroupOrder:
    """An open order with so many shards, eight a group, as a first scan leaves it."""
    order = GroupOrder()
    for number in range(_DIRECTORIES):
        order.add_directory(number % 2)
    tails = [f"_{rank}_{RANKS}" for rank in range(RANKS)]
    for page in range(shards // RANKS):
        key = f"{sha256(str(page).encode()).hexdigest()}_{MODEL}"
        mtime = (FIRST_MTIME + page) * 1_000_000_000
        for rank, tail in enumerate(tails):
            order.upsert(key, tail, (page * RANKS + rank) % _DIRECTORIES, mtime, 4096)
    order.open()
    return order


def pop_seconds(order: GroupOrder) -> float:
    """Seconds a pop: the median of some rounds, after one that warms up."""
    rounds = []
    for _ in range(_ROUNDS + 1):
        start = perf_counter()
        for _ in range(_POPS):
            order.pop_oldest()
        rounds.append((perf_counter() - start) / _POPS)
    return median(rounds[1:])


def run(settings: Settings) -> Iterator[Result]:
    """One row a size, each against the smallest."""
    smallest = None
    for shards in (10_000, 40_000 if settings.quick else 1_000_000):
        order = filled(shards)
        seconds = pop_seconds(order)
        yield Result.of(f"pop.{shards}", seconds * 1e6, "us", smallest, groups=shards // RANKS)
        smallest = smallest or seconds * 1e6
