"""`evict`: the oldest groups off the disk, by the index and by those who rescan, beside a quiet or spinning host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from nixl_index import Evictor, GroupIndex, KeyScheme
from tests.bench import peer, rescan
from tests.bench.harness import Settings
from tests.bench.rows import Result, median, quantile
from tests.bench.spin import Run, beside, spun_alone
from tests.bench.trees import fill, page_paths

_SIZES = (0, 64 << 10, 1 << 20)
"""Bytes a shard that goes; the others are empty, and cost nobody anything but their names."""

_LARGE = 200_000
"""Shards above which one round of those who rescan has to do."""

Round = Callable[[], float]
"""Evicts, and returns the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Task:
    """The `groups` oldest groups of a tree go, `rounds` times."""

    bases: Sequence[str]
    shards: int
    groups: int
    rounds: int

    def seconds(
        self, evict: Round, rounds: int = 0, size: int = 0, ready: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Let somebody do it; before each round the oldest groups are written again, with shards of this size. Raises
        RuntimeError for a round that did not do its work."""
        taken = []
        for _ in range(rounds or self.rounds):
            fill(self.bases, self.groups, size=size)
            ready()
            taken.append(evict())
            if any(map(os.path.lexists, self.victims())):
                raise RuntimeError("what was to be evicted is still there")
        fill(self.bases, self.groups)
        return taken

    def victims(self) -> Iterable[str]:
        """The paths of the shards that go."""
        return chain.from_iterable(page_paths(self.bases, page) for page in range(self.groups))


def run(settings: Settings) -> Iterator[Result]:
    """Three sizes of tree beside a quiet host; sizes of shards on the largest; then a host that spins."""
    groups, rounds = (2, 1) if settings.quick else (50, 5)
    for shards in (settings.shards // 100, settings.shards // 10, settings.shards):
        task = Task(settings.tree(shards), shards, groups, rounds)
        yield from _quiet(task, settings.peer, _SIZES if shards == settings.shards else _SIZES[:1])
    yield from _spinning(settings, groups, rounds)


def _by_index(task: Task, spinning: bool, run: Run, sizes: Sequence[int] = _SIZES[:1]) -> dict[int, list[float]]:
    """Seconds of the rounds of an `Evictor`, in another thread than the main one, with shards of each size."""
    with GroupIndex.watch(*task.bases) as index:
        evictor = Evictor(index)

        def evict() -> float:
            return beside(run, spinning, lambda: evictor.evict_oldest(task.groups))[1]

        return {size: task.seconds(evict, size=size, ready=index.sync) for size in sizes}


def _by_rescan(task: Task, spinning: bool, rounds: int) -> list[float]:
    scheme = KeyScheme()
    return task.seconds(
        lambda: beside(Run(), spinning, lambda: rescan.evict_oldest(task.bases, scheme, task.groups))[1], rounds
    )


def _by_bare_loop(task: Task, size: int) -> list[float]:
    """What is left where somebody says which files: a look at each, and its end."""
    paths = list(task.victims())

    def loop() -> None:
        for path in paths:
            os.lstat(path)
            os.unlink(path)

    return task.seconds(lambda: beside(Run(), False, loop)[1], size=size)


def _quiet(task: Task, script: str | None, sizes: Sequence[int]) -> Iterator[Result]:
    """First those that rescan, then the bare loop: none of them is to make events for the index."""
    few = 1 if task.shards > _LARGE else min(3, task.rounds)
    peers = task.seconds(lambda: peer.tick(script, task.bases, task.groups), few) if script else []
    rescans = _by_rescan(task, False, few)
    bare = {size: _by_bare_loop(task, size) for size in sizes}
    ours = _by_index(task, False, Run(), sizes)
    name, figures = f"evict.quiet.{task.shards}", (median(ours[0]), "s")
    yield Result.of(f"{name}.rescan", *figures, median(rescans), against="the rescan", worst=max(ours[0]))
    if peers:
        yield Result.of(f"{name}.peer", *figures, median(peers), against=peer.NAME)
    for size in sizes:
        milliseconds = median(ours[size]) * 1e3, "ms", median(bare[size]) * 1e3
        yield Result.of(f"{name}.bare.{size}", *milliseconds, against="a bare loop of lstat and unlink")


def _spinning(settings: Settings, groups: int, rounds: int) -> Iterator[Result]:
    """Ours on a tree that rescanning beside a host that spins would take minutes for; and who rescans, on a smaller."""
    large, small = (Task(settings.tree(n), n, groups, rounds) for n in (settings.shards // 10, settings.shards // 50))
    run = Run()
    quiet, ours = _by_index(large, False, Run())[0], _by_index(large, True, run)[0]
    alone = _longest(spun_alone(sum(ours)))
    yield Result.of(
        "evict.spinning.large",
        median(ours) * 1e3,
        "ms",
        median(quiet) * 1e3,
        against="beside a quiet host",
        shards=large.shards,
        worst=max(ours) * 1e3,
    )
    for figure, pause in _longest(run).items():
        yield Result.of(f"evict.spinning.pause_{figure}", pause, "ms", alone[figure], against="spinning alone")
    theirs, who = _by_rescan_spinning(small, settings.peer)
    seconds = median(_by_index(small, True, Run())[0])
    yield Result.of("evict.spinning.small", seconds, "s", theirs, against=who, shards=small.shards)


def _longest(run: Run) -> dict[str, float]:
    """What its pauses come to, in ms."""
    return {"p99": quantile(run.pauses, 0.99) * 1e3, "max": max(run.pauses, default=0.0) * 1e3}


def _by_rescan_spinning(task: Task, script: str | None) -> tuple[float, str]:
    """The seconds of one round of the peer where there is one, else of the rescan, which does the same work; and whose
    they are."""
    if script:
        return task.seconds(lambda: peer.tick(script, task.bases, task.groups, True), 1)[0], peer.NAME
    return _by_rescan(task, True, 1)[0], "the rescan"
