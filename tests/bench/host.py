"""The process that embeds the index: its main thread spins or sleeps while a writer, another process, writes pages."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.cpu import machine_seconds, thread_seconds
from tests.bench.embedded import Embedded, Variant, embed
from tests.bench.rows import median, quantile
from tests.bench.spin import Run, beside
from tests.bench.trees import make_bases
from tests.bench.writer import Board, Writer

_ALONE_SECONDS = 0.5
_DEADLINE_SECONDS = 60.0
_GRACE_SECONDS = 5.0
_LONG_ENOUGH = 0.1
"""A rate over less than this says nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """How the writer writes: `rate` files a second, 0 as fast as it can. The baseline has no index."""

    name: str
    rate: int
    seconds: float
    baseline_seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """What one host does."""

    variant: Variant
    spinning: bool
    root: str
    load: Load


class Peace:
    """How many cores others used meanwhile: neither this process, nor the writer, nor the scout."""

    def __init__(self, *others: Callable[[], float]) -> None:
        self._clocks = (time.process_time, *others)
        self._start = time.monotonic()
        self._machine, self._ours = machine_seconds(), self._own()

    def _own(self) -> float:
        return sum(clock() for clock in self._clocks)

    def broken(self) -> float:
        """Up to now. The machine's clock is coarse, so it can be a little off."""
        foreign = machine_seconds() - self._machine - (self._own() - self._ours)
        return max(0.0, foreign) / (time.monotonic() - self._start)


def figures(run: Run, board: Board) -> dict[str, Any]:
    """What the main thread did while the writer wrote, and after, and what the writer did."""
    start, end, last = board.started, board.ended, run.times[-1]
    pauses = run.pauses_between(start, last)
    written = len(board.closes)
    return {
        "written": written,
        "write_rate": written / (end - start),
        "turn_rate": run.rate(start, end),
        "turn_rate_after": run.rate(end, last) if last - end > _LONG_ENOUGH else None,
        "pause_p99": quantile(pauses, 0.99),
        "pause_max": max(pauses, default=0.0),
        "pauses_a_second": len(pauses) / (last - start),
    }


def until_written(run: Run, task: Task, writer: Writer, count: Callable[[], int]) -> None:
    """Let the writer go and the main thread with it."""
    board = writer.board
    deadline = time.monotonic() + task.load.seconds + _DEADLINE_SECONDS
    board.go()
    run.until(lambda: board.done or time.monotonic() > deadline, task.spinning, count)
    if not board.done:
        raise RuntimeError("the writer did not finish")


def without_index(task: Task) -> dict[str, Any]:
    """The baseline: the writer takes its share of the cores and of the memory bus from the host as well."""
    root, load, run = Path(task.root, "baseline"), task.load, Run()
    with Writer(f"{root}.board", make_bases(root), load.rate, load.baseline_seconds) as writer:
        peace = Peace(lambda: writer.seconds)
        until_written(run, task, writer, lambda: 0)
        others = peace.broken()
    shutil.rmtree(root)
    return figures(run, writer.board) | {"others": others}


def with_index(task: Task, embedded: Embedded, bases: list[str]) -> dict[str, Any]:
    """The same beside the index."""
    run = Run()
    with Writer(str(Path(task.root, "board")), bases, task.load.rate, task.load.seconds) as writer:
        threads, scout = thread_seconds(), embedded.scout_seconds()
        peace = Peace(lambda: writer.seconds, embedded.scout_seconds)
        until_written(run, task, writer, embedded.count)
        closes, grace = writer.board.closes, min(_GRACE_SECONDS, task.load.seconds)
        problem, seconds = beside(run, task.spinning, lambda: embedded.settle(len(closes), grace), embedded.count)
        threads, scout = thread_seconds() - threads, embedded.scout_seconds() - scout
        others = peace.broken()
    return figures(run, writer.board) | {
        "indexed": embedded.count(),
        "problem": problem,
        "settle_seconds": seconds,
        "lags": _spread(embedded.lags(closes, run)),
        "thread_cpu": threads,
        "scout_cpu": scout,
        "others": others,
    }


def _spread(lags: list[float]) -> dict[str, float]:
    return {"median": median(lags), "p99": quantile(lags, 0.99), "max": max(lags)} if lags else {}


def alone(task: Task) -> float:
    """Turns a second of the main thread with neither writer nor index."""
    run, until = Run(), time.monotonic() + min(_ALONE_SECONDS, task.load.baseline_seconds)
    run.until(lambda: time.monotonic() > until, task.spinning)
    return run.rate(0.0, until)


def measure(task: Task) -> dict[str, Any]:
    """First without, then with: a process that never had the index is the only honest baseline."""
    told: dict[str, Any] = {"alone": alone(task), "baseline": without_index(task)}
    bases = make_bases(Path(task.root, "tree"))
    embedded = embed(task.variant, bases)
    try:
        told["figures"] = with_index(task, embedded, bases)
        return told | {"audit": embedded.audit(), "notes": embedded.notes()}
    finally:
        embedded.close()


def main() -> None:
    """Do the task that the command line holds, and print what came of it."""
    logging.basicConfig()
    (task,) = json.loads(sys.argv[1])
    task["load"] = Load(**task["load"])
    print(json.dumps(measure(Task(**task))))


if __name__ == "__main__":
    main()
