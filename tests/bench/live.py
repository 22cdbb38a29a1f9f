"""`live`: an index that is kept while files are written: is it complete, how far behind, and what does the host pay?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from tests.bench import bare
from tests.bench.embedded import Variant
from tests.bench.harness import Settings, child
from tests.bench.host import Load, Task
from tests.bench.rows import Result

_RATE, _FULL = Load("rate_5000", 5_000, 15.0, 5.0), Load("full", 0, 8.0, 4.0)
# The stock observer first: it is the baseline. No scout in a thread beside a busy host: it would take minutes.
_CASES: tuple[tuple[Load, Variant, bool], ...] = (
    (_RATE, "stock", False),
    (_RATE, "process", False),
    (_RATE, "thread", False),
    (_RATE, "stock", True),
    (_RATE, "process", True),
    (_FULL, "stock", True),
    (_FULL, "process", True),
)


def run(settings: Settings) -> Iterator[Result]:
    """Each load on each variant in a fresh process, beside a quiet or spinning main thread."""
    stock: dict[str, float] = {}
    for load, variant, spinning in _CASES:
        load = replace(load, seconds=0.2, baseline_seconds=0.1) if settings.quick else load
        with settings.scratch() as root:
            told = child("host", asdict(Task(variant, spinning, str(root), load)))
        name = f"live.{load.name}.{variant}.{'spinning' if spinning else 'quiet'}"
        rows = list(_index_rows(name, told))
        if variant == "stock":
            stock = {_figure(row): row.value for row in rows}
            yield from rows
        else:
            yield from (_beside(stock.get(_figure(row)), row) for row in rows)
            yield Result.of(f"{name}.overflows", told["notes"].get("overflows", 0), "times")
        if variant == "process":
            yield _scout_row(name, told)
        if spinning:
            yield from _host_rows(name, told)
        yield _writer_row(name, told)


def _index_rows(name: str, told: dict[str, Any]) -> Iterator[Result]:
    """What the index has, how late it had it, and what that took in the host."""
    figures, audit = told["figures"], told["audit"]
    written, settled = figures["written"], figures["settle_seconds"]
    yield Result.of(f"{name}.indexed", 100 * figures["indexed"] / written, "%", written=written, settle_s=settled)
    # Not one shard may be other than on the disk: after a sync there is no "nearly".
    wrong = audit["missing"] + audit["extra"] + audit["wrong_mtime"]
    yield Result.of(f"{name}.wrong", wrong, "files", problem=figures["problem"] or None, **audit, **told["notes"])
    for figure, seconds in figures["lags"].items():
        yield Result.of(f"{name}.lag_{figure}", seconds * 1e3, "ms")
    cost = bare.waking(figures["write_rate"])
    yield Result.of(f"{name}.host_cpu", figures["thread_cpu"] / written * 1e6, "us/file", bare=cost)


def _figure(row: Result) -> str:
    return row.name.rpartition(".")[2]


def _beside(stock: float | None, row: Result) -> Result:
    return Result.of(row.name, row.value, row.unit, stock, against="the stock observer", **row.details)


def _scout_row(name: str, told: dict[str, Any]) -> Result:
    figures = told["figures"]
    cost = bare.looking(figures["write_rate"])
    cpu = figures["scout_cpu"] / figures["written"] * 1e6
    return Result.of(f"{name}.scout_cpu", cpu, "us/file", cost, against="a loop of lstat that wakes up as often")


def _host_rows(name: str, told: dict[str, Any]) -> Iterator[Result]:
    """What the host keeps: against itself beside the same writer, without an index."""
    figures, baseline, against = told["figures"], told["baseline"], "without an index"
    rates = {"catching_up": figures["turn_rate_after"], "alone": told["alone"]}
    yield Result.of(
        f"{name}.host_rate", figures["turn_rate"], "turns/s", baseline["turn_rate"], against=against, **rates
    )
    for figure in ("pause_p99", "pause_max"):
        yield Result.of(f"{name}.{figure}", figures[figure] * 1e3, "ms", baseline[figure] * 1e3, against=against)
    yield Result.of(f"{name}.pauses", figures["pauses_a_second"], "1/s", baseline["pauses_a_second"], against=against)


def _writer_row(name: str, told: dict[str, Any]) -> Result:
    """What the writer keeps; and how many cores others had, which says whether the figures were taken in peace."""
    figures, baseline = told["figures"], told["baseline"]
    others = {"others_cores": figures["others"], "others_baseline": baseline["others"]}
    rates = figures["write_rate"], "files/s", baseline["write_rate"]
    return Result.of(f"{name}.written", *rates, against="without an index", **others)
