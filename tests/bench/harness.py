"""What all subjects share: the row of a result, the table, the JSON, the settings and the scratch directory."""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m tests.bench...` can be started from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run goes: `quick` is a smoke run of seconds, whose figures mean nothing."""

    quick: bool = False
    directory: str | None = None
    """Where trees are made; the system's temporary directory unless given."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A fresh directory, removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="nixl-index-bench-", dir=self.directory) as path:
            yield Path(path)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `baseline` is the same figure without the index, or of what the index replaces."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    """`value / baseline`."""
    details: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, value: float, unit: str, baseline: float | None = None, **details: object) -> Result:
        """A row with its ratio."""
        ratio = value / baseline if baseline else None
        return cls(name, value, unit, baseline, ratio, {k: v for k, v in details.items() if v is not None})


Subject = Callable[[Settings], Iterable[Result]]

_COLUMNS = "{:<44} {:>12} {:<9} {:>12} {:>8}  {}"


def header() -> str:
    """The head of the table."""
    return _COLUMNS.format("name", "value", "unit", "baseline", "ratio", "details")


def line(result: Result) -> str:
    """A row of the table."""
    details = ", ".join(f"{key} {_short(value)}" for key, value in result.details.items())
    cells = ("" if value is None else _short(value) for value in (result.baseline, result.ratio))
    return _COLUMNS.format(result.name, _short(result.value), result.unit, *cells, details).rstrip()


def write_json(path: str, results: Sequence[Result], settings: Settings) -> None:
    """All rows, and what they were measured on."""
    run = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "quick": settings.quick,
    }
    text = json.dumps({"run": run, "results": [asdict(result) for result in results]}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """The median; 0.0 of none."""
    return statistics.median(values) if values else 0.0


def _short(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
