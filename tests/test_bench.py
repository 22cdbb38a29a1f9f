"""The benchmarks run and say something. What they say depends on the machine, so no figure of theirs is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import picture, report
from tests.bench.__main__ import SUBJECTS
from tests.bench.harness import ROOT
from tests.bench.rows import Result, line, merged, read_json, write_json

_PEER = """
import argparse, json, sys
sys.path.insert(0, {root!r})
from nixl_index import KeyScheme
from tests.bench import rescan

parser = argparse.ArgumentParser()
parser.add_argument("dirs", nargs="+")
parser.add_argument("--groups", type=int)
parser.add_argument("--rounds", type=int)
options = parser.parse_args()
for _ in range(options.rounds):
    rescan.evict_oldest(options.dirs, KeyScheme(), options.groups)
    print(json.dumps({{"seconds": 0.5}}))
"""


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)  # each figure takes a process or two to start, and a busy machine takes its time
def test_quick_run(tmp_path: Path) -> None:
    told, drawn, peer = tmp_path / "told.json", tmp_path / "drawn.svg", tmp_path / "peer.py"
    peer.write_text(_PEER.format(root=str(ROOT)), encoding="utf-8")
    printed = _run("tests.bench", "--quick", "--json", told, "--dir", tmp_path, "--peer", peer)
    assert sorted(tmp_path.iterdir()) == [peer, told], "a tree was left behind"
    results = json.loads(told.read_text(encoding="utf-8"))["results"]
    names = [result["name"] for result in results]
    assert len(names) == len(set(names))
    assert [row.split()[0] for row in printed.splitlines()[1:]] == names
    assert list(dict.fromkeys(name.partition(".")[0] for name in names)) == list(SUBJECTS)
    for result in results:
        assert isinstance(result["value"], (int, float))
        assert result["unit"]
        assert result["baseline"] is None or result["details"]["against"]
    for _, _, pattern in report.LINES:
        assert any(fnmatchcase(name, pattern) for name in names), pattern
    _run("tests.bench.picture", told, drawn)
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    assert len(_run("tests.bench.report", told).splitlines()) == len(report.LINES) + 4


def _results(scale: float = 1.0) -> list[Result]:
    return [
        Result.of("evict.quiet.1000.rescan", 0.002 * scale, "s", 0.1 * scale, against="the rescan"),
        Result.of("evict.quiet.1000.peer", 0.002 * scale, "s", 0.2 * scale, against="SGLang's cleaner"),
        Result.of("evict.quiet.100000.rescan", 0.003 * scale, "s", 10.0 * scale, against="the rescan"),
        Result.of("evict.quiet.100000.peer", 0.003 * scale, "s", 11.0 * scale, against="SGLang's cleaner"),
        Result.of("evict.spinning.large", 12.5, "ms", 5.0, against="beside a quiet host", shards=10_000),
        Result.of("order.upsert", 4.0, "us"),
    ]


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """The file of a run of three."""
    path = tmp_path / "told.json"
    write_json(str(path), [_results(scale) for scale in (1.0, 3.0, 2.0)], shards=100_000)
    return path


def test_file_holds_every_run_and_the_machine_only(told: Path) -> None:
    content = json.loads(told.read_text(encoding="utf-8"))
    assert content["machine"].keys() == {"python", "cores", "memory_bytes"}
    assert [row["value"] for row in content["results"] if row["name"].endswith(".1000.peer")] == [0.002, 0.006, 0.004]


def test_medians_and_spread_of_several_runs(told: Path) -> None:
    machine, results = read_json(str(told))
    assert (machine["runs"], machine["shards"]) == (3, 100_000)
    assert [result.name for result in results] == [result.name for result in _results()]
    row = results[1]
    assert (row.value, row.baseline, row.ratio) == pytest.approx((0.004, 0.4, 0.01))
    assert row.details["spread"] == "0.002..0.006"
    assert "0.004 s" in line(row)
    assert "0.002..0.006" in line(row)
    assert merged([_results()]) == _results(), "one run has no spread"
    assert results[-1].baseline is None


def test_report(told: Path) -> None:
    table = [row.split(" | ") for row in _run("tests.bench.report", told).split("\n\n")[0].splitlines()]
    assert {len(cells) for cells in table[:1] + table[2:]} == {5}
    by_what: dict[str, Any] = {cells[0]: cells for cells in table}
    # The largest tree's row, not another's.
    assert by_what["| evict 50 groups (400 empty shards), quiet host"][2:] == [
        "0.006 s (0.003..0.009)",
        "22 s: SGLang's cleaner",
        "1/3,667 |",
    ]
    assert by_what["| evict 50 groups of 10,000 shards, spinning host"][3] == "5 ms: beside a quiet host"
    assert not any("first scan" in what for what in by_what), "what was not measured is not in the table"


def test_picture(told: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.svg"
    _run("tests.bench.picture", told, drawn)
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(drawn).getroot()
    lines = root.findall(f"{svg}polyline")
    assert len(lines) == 3
    heights = {text.text: float(text.attrib["y"]) for text in root.findall(f"{svg}text")}
    assert {"shards in the tree", "1,000", "100,000", "1 ms", "nixl_index, 6 ms"} <= heights.keys()
    assert heights["rescan, 20 s"] - heights["SGLang's cleaner, 22 s"] >= 18, "one label lies on the other"
    for curve in lines:  # log-log: more seconds are further up, and never outside
        places = [tuple(map(float, place.split(","))) for place in curve.attrib["points"].split()]
        assert places[0][0] < places[1][0]
        assert places[0][1] > places[1][1]
        assert all(0 <= x <= 760 and 0 <= y <= 420 for x, y in places)


def test_picture_of_nothing() -> None:
    with pytest.raises(ValueError, match="--only evict"):
        picture.draw({})


def test_readme_shows_what_was_measured(tmp_path: Path) -> None:
    """Its table and its picture are made of the figures that are kept beside the benchmark."""
    figures, drawn = ROOT / "tests/bench/figures.json", tmp_path / "drawn.svg"
    table = _run("tests.bench.report", figures)
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
    _run("tests.bench.picture", figures, drawn)
    assert drawn.read_bytes() == (ROOT / "tests/bench/eviction.svg").read_bytes()
