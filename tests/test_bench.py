"""The benchmarks run and say something. What they say depends on the machine, so no figure is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import SUBJECTS
from tests.bench.harness import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)  # each figure takes a process or two to start, and a busy machine takes its time
@pytest.mark.parametrize("name", SUBJECTS)
def test_quick_run(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--only", name, "--json", str(report)]
    done = subprocess.run([*command, "--dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(report.read_text(encoding="utf-8"))["results"]
    assert results
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [result["name"] for result in results]
    for result in results:
        assert result["name"].startswith(f"{name}.")
        assert isinstance(result["value"], (int, float))
        assert result["unit"]
    assert list(tmp_path.iterdir()) == [report], "a tree was left behind"
