"""What a benchmark says: rows, one a figure; their table, their JSON, and what several runs of one row come to."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `baseline` is the same figure without the index, or of what the index replaces."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    """`value / baseline`."""
    details: dict[str, Any] = field(default_factory=dict)
    """`against` says in words what the baseline is."""

    @classmethod
    def of(cls, name: str, value: float, unit: str, baseline: float | None = None, **details: object) -> Result:
        """A row with its ratio."""
        ratio = value / baseline if baseline else None
        return cls(name, value, unit, baseline, ratio, {k: v for k, v in details.items() if v is not None})


def merged(runs: Iterable[Sequence[Result]]) -> list[Result]:
    """The rows of several runs, each with the medians of its figures, and with its spread where there were several."""
    by_name: dict[str, list[Result]] = {}
    for run in runs:
        for result in run:
            by_name.setdefault(result.name, []).append(result)
    return [_median_of(results) for results in by_name.values()]


def _median_of(results: Sequence[Result]) -> Result:
    if len(results) == 1:
        return results[0]
    values = [result.value for result in results]
    spread = f"{short(float(min(values)))}..{short(float(max(values)))}"
    return replace(
        results[-1],
        value=median(values),
        baseline=_median_if_any([result.baseline for result in results]),
        ratio=_median_if_any([result.ratio for result in results]),
        details=results[-1].details | {"spread": spread, "runs": len(results)},
    )


def _median_if_any(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


_COLUMNS = "{:<44} {:>12} {:<9} {:>12} {:>8}  {}"


def header() -> str:
    """The head of the table."""
    return _COLUMNS.format("name", "value", "unit", "baseline", "ratio", "details")


def line(result: Result) -> str:
    """A row of the table."""
    details = ", ".join(f"{key} {short(value)}" for key, value in result.details.items())
    cells = ("" if value is None else short(value) for value in (result.baseline, result.ratio))
    return _COLUMNS.format(result.name, short(result.value), result.unit, *cells, details).rstrip()


def short(value: object) -> str:
    """A figure with three digits, or all of a large one."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write_json(path: str, runs: Sequence[Sequence[Result]], **settings: object) -> None:
    """All rows of all runs, and what they were measured on."""
    machine = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
    results = [{"run": number, **asdict(result)} for number, run in enumerate(runs, 1) for result in run]
    text = json.dumps({"machine": machine, "settings": {"runs": len(runs), **settings}, "results": results}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def read_json(path: str) -> tuple[dict[str, Any], list[Result]]:
    """What `write_json` wrote: the machine and the settings in one, and the rows, merged."""
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    runs: dict[int, list[Result]] = {}
    for row in told["results"]:
        runs.setdefault(row.pop("run"), []).append(Result(**row))
    return told["machine"] | told["settings"], merged(runs.values())


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """The median; 0.0 of none."""
    return statistics.median(values) if values else 0.0
