"""`order`: what a bare order takes for a pop, small and large: O(log n) or not; and for a new shard. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from time import perf_counter

from nixl_index.order import GroupOrder
from tests.bench.harness import Settings
from tests.bench.rows import Result, median
from tests.bench.trees import FIRST_MTIME, MODEL, RANKS

_DIRECTORIES = 512
_ROUNDS, _POPS = 9, 100
_BATCH = 64
"""Shards that the index puts in at once."""

Row = tuple[str, str, int, int, int]
"""Key, tail, directory, mtime, disk bytes."""


def run(settings: Settings) -> Iterator[Result]:
    """One row a size, each against the smallest; then new pages for the largest."""
    smallest = None
    for shards in (settings.shards // 100, settings.shards):
        order = filled(shards)
        seconds = pop_seconds(order)
        yield Result.of(f"order.pop.{shards}", seconds * 1e6, "us", smallest, against=smallest and "the smallest")
        smallest = smallest or seconds * 1e6
    rows = list(islice(_rows(shards // RANKS), shards // 10))
    half = len(rows) // (2 * RANKS) * RANKS
    batched, single = _batched_seconds(order, rows[:half]), _single_seconds(order, rows[half:])
    least = _dict_seconds(rows)
    for name, seconds in (("upsert", batched), ("upsert_one_by_one", single)):
        yield Result.of(f"order.{name}", seconds * 1e6, "us", least * 1e6, against="a dict of dicts, without an order")


def filled(shards: int) -> GroupOrder:
    """An open order with so many shards, eight a group, as a first scan leaves it."""
    order = GroupOrder()
    for number in range(_DIRECTORIES):
        order.add_directory(number % 2)
    for row in islice(_rows(0), shards):
        order.upsert(*row)
    order.open()
    return order


def _rows(page: int) -> Iterator[Row]:
    """The shards of pages from this one on, without end."""
    tails = [f"_{rank}_{RANKS}" for rank in range(RANKS)]
    while True:
        key = f"{sha256(str(page).encode()).hexdigest()}_{MODEL}"
        mtime = (FIRST_MTIME + page) * 1_000_000_000
        for rank, tail in enumerate(tails):
            yield key, tail, (page * RANKS + rank) % _DIRECTORIES, mtime + rank, 4096
        page += 1


def pop_seconds(order: GroupOrder) -> float:
    """Seconds a pop: the median of some rounds, after one that warms up."""
    rounds, pops = [], min(_POPS, len(order) // (_ROUNDS + 1))
    for _ in range(_ROUNDS + 1):
        start = perf_counter()
        for _ in range(pops):
            order.pop_oldest()
        rounds.append((perf_counter() - start) / pops)
    return median(rounds[1:])


def _single_seconds(order: GroupOrder, rows: Sequence[Row]) -> float:
    start = perf_counter()
    for row in rows:
        order.upsert(*row)
    return (perf_counter() - start) / len(rows)


def _batched_seconds(order: GroupOrder, rows: Sequence[Row]) -> float:
    start = perf_counter()
    for at in range(0, len(rows), _BATCH):
        order.upsert_all(rows[at : at + _BATCH])
    return (perf_counter() - start) / len(rows)


def _dict_seconds(rows: Sequence[Row]) -> float:
    groups: dict[str, dict[tuple[int, str], tuple[int, int]]] = {}
    start = perf_counter()
    for key, tail, directory, mtime, disk_bytes in rows:
        groups.setdefault(key, {})[directory, tail] = mtime, disk_bytes
    return (perf_counter() - start) / len(rows)
