"""`live`: an index that is kept while files are written: is it complete, how far behind, and what does the host pay?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.bench.embedded import VARIANTS
from tests.bench.harness import ROOT, Result, Settings
from tests.bench.host import Load, Task, command_line

_LOADS = (Load("rate_5000", 5_000, 20.0, 6.0), Load("full", 0, 10.0, 5.0))
_QUICK = (Load("rate_2000", 2_000, 0.2, 0.1),)
_HOST_SECONDS = 600


def run(settings: Settings) -> Iterator[Result]:
    """Each load on each variant in a fresh process, beside a quiet and a spinning main thread."""
    for load, variant, spinning in product(_QUICK if settings.quick else _LOADS, VARIANTS, (False, True)):
        with settings.scratch() as root:
            told = _host(Task(variant, spinning, str(root), load))
        name = f"live.{load.name}.{variant}.{'spinning' if spinning else 'quiet'}"
        yield from _index_rows(name, told)
        if spinning:
            yield from _host_rows(name, told)


def _host(task: Task) -> dict[str, Any]:
    """Run one host. Its standard error is ours, so that warnings of the index are seen."""
    done = subprocess.run(
        command_line(task), cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=_HOST_SECONDS, text=True
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _index_rows(name: str, told: dict[str, Any]) -> Iterator[Result]:
    """What the index has, how late it had it, and what that took."""
    figures, baseline, audit = told["figures"], told["baseline"], told["audit"]
    written = figures["written"]
    yield Result.of(f"{name}.indexed", figures["indexed"], "files", written, settle_s=figures["settle_seconds"])
    # Not one shard may be other than on the disk: after a sync there is no "nearly".
    wrong = audit["missing"] + audit["extra"] + audit["wrong_mtime"]
    yield Result.of(
        f"{name}.wrong", wrong, "files", audit["on_disk"], **audit, problem=figures["problem"] or None, **told["notes"]
    )
    others = {"others_cores": figures["others"], "others_baseline": baseline["others"]}
    yield Result.of(f"{name}.written", figures["write_rate"], "files/s", baseline["write_rate"], **others)
    for figure, seconds in figures["lags"].items():
        yield Result.of(f"{name}.lag_{figure}", seconds * 1e3, "ms")
    yield Result.of(f"{name}.thread_cpu", figures["thread_cpu"] / written * 1e6, "us/file")
    yield Result.of(f"{name}.scout_cpu", figures["scout_cpu"] / written * 1e6, "us/file")


def _host_rows(name: str, told: dict[str, Any]) -> Iterator[Result]:
    """What the host keeps: against itself beside the same writer, without an index."""
    figures, baseline = told["figures"], told["baseline"]
    rates = {"catching_up": figures["turn_rate_after"], "alone": told["alone"]}
    yield Result.of(f"{name}.host_rate", figures["turn_rate"], "turns/s", baseline["turn_rate"], **rates)
    for figure in ("pause_p99", "pause_max"):
        yield Result.of(f"{name}.{figure}", figures[figure] * 1e3, "ms", baseline[figure] * 1e3)
    yield Result.of(f"{name}.pauses", figures["pauses_a_second"], "1/s", baseline["pauses_a_second"])
