"""`evict`: the oldest groups off the disk, by the index and by a rescan, beside a quiet or spinning host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from nixl_index import Evictor, GroupIndex, KeyScheme
from tests.bench import rescan
from tests.bench.harness import Result, Settings, median, quantile
from tests.bench.spin import Run, beside
from tests.bench.trees import RANKS, fill, make_bases


def run(settings: Settings) -> Iterator[Result]:
    """One row for each state of the host: the index against the rescan, on trees of their own."""
    shards, groups, rounds = (320, 5, 1) if settings.quick else (20_000, 50, 3)
    for spinning in (False, True):
        with settings.scratch() as root:
            ours, ours_pauses = _by_index(root / "ours", shards, groups, rounds, spinning)
            theirs, theirs_pauses = _by_rescan(root / "theirs", shards, groups, 1 if spinning else rounds, spinning)
        name = f"evict.{groups}_groups_of_{shards}.{'spinning' if spinning else 'quiet'}"
        yield Result.of(f"{name}.seconds", median(ours), "s", median(theirs), rounds=len(ours), worst=max(ours))
        if spinning:
            yield Result.of(f"{name}.pause_max", max(ours_pauses) * 1e3, "ms", max(theirs_pauses) * 1e3)
            p99, baseline = (quantile(pauses, 0.99) * 1e3 for pauses in (ours_pauses, theirs_pauses))
            yield Result.of(f"{name}.pause_p99", p99, "ms", baseline)


def _by_index(root: Path, shards: int, groups: int, rounds: int, spinning: bool) -> tuple[list[float], list[float]]:
    bases = make_bases(root)
    fill(bases, shards // RANKS)
    with GroupIndex.watch(*bases) as index:
        evictor = Evictor(index)

        def tick() -> int:
            return sum(group.shards for group in evictor.evict_oldest(groups).evicted)

        return _measure(tick, groups * RANKS, rounds, spinning)


def _by_rescan(root: Path, shards: int, groups: int, rounds: int, spinning: bool) -> tuple[list[float], list[float]]:
    bases = make_bases(root)
    fill(bases, shards // RANKS)
    scheme = KeyScheme()
    return _measure(lambda: rescan.evict_oldest(bases, scheme, groups), groups * RANKS, rounds, spinning)


def _measure(tick: Callable[[], int], files: int, rounds: int, spinning: bool) -> tuple[list[float], list[float]]:
    """The seconds of each round, and all pauses of the host. Refuses a round that did not do its work."""
    seconds, run = [], Run()
    for _ in range(rounds):
        unlinked, took = beside(run, spinning, tick)
        if unlinked != files:
            raise RuntimeError(f"{unlinked} files were unlinked, not {files}")
        seconds.append(took)
    return seconds, list(run.pauses) or [0.0]
