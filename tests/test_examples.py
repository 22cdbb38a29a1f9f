"""The examples run, as a user runs them, and say what is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import write

ROOT = Path(__file__).parents[1]
QUICKSTART = [sys.executable, "-W", "error", str(ROOT / "examples" / "quickstart.py")]
TAILS = ("_0_2_k", "_0_2_v", "_1_2_k", "_1_2_v")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Finds the package without it being installed, and keeps temporary directories where the test can look at them."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}


@pytest.fixture
def pages(bases: list[Path]) -> list[Path]:
    """The base dirs, with three pages of four shards, half of them on each; `page0` is the oldest."""
    for number in range(3):
        for place, tail in enumerate(TAILS):
            write(bases[place % 2] / "0a" / f"page{number}_model{tail}", bytes(4096), 1_700_000_000 + number)
    return bases


def names(bases: list[Path]) -> list[str]:
    return sorted(path.name for base in bases for path in base.glob("*/*"))


def run(environment: dict[str, str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    command = [*QUICKSTART, *map(str, arguments)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    return ran.returncode, ran.stdout, ran.stderr


def interrupted(environment: dict[str, str], *arguments: str | Path) -> tuple[int, str]:
    """Exit code and stdout after a Ctrl-C that comes once the table has its first line; stderr is empty."""
    command = [*QUICKSTART, *map(str, arguments)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and its children
    try:
        running = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        assert running.stdout
        head = ""
        while "0.0 s" not in head:
            line = running.stdout.readline()
            assert line, "it ended early"
            head += line
        # To the whole group, as a terminal does: the scout gets it too.
        os.killpg(running.pid, signal.SIGINT)
        stdout, stderr = running.communicate(timeout=50)
    assert stderr == ""
    return running.returncode, head + stdout


def test_quickstart_demonstrates(environment: dict[str, str]) -> None:
    code, stdout, stderr = run(environment)
    assert (code, stderr) == (0, ""), stdout
    assert "0 differences" in stdout
    assert "evicted now" in stdout
    last_line = stdout.splitlines()[-1]
    assert last_line.startswith("All well: ")
    assert last_line.endswith(" evicted.")
    assert " 0 groups" not in last_line, "something was left, and something was evicted"
    assert os.listdir(environment["TMPDIR"]) == []


def test_quickstart_only_reports_on_directories(environment: dict[str, str], pages: list[Path]) -> None:
    before = names(pages)
    code, stdout, stderr = run(environment, *pages, "--seconds", "0")
    assert (code, stderr) == (0, "")
    header, line, summary = stdout.splitlines()
    assert header.split() == ["time", "groups", "shards", "on", "disk", "oldest"]
    assert line.split()[:4] == ["0.0", "s", "3", "12"]
    assert summary.startswith("The index is live: 3 groups, 12 shards, ")
    assert names(pages) == before


def test_quickstart_evicts_whole_groups_when_asked(environment: dict[str, str], pages: list[Path]) -> None:
    code, stdout, stderr = run(environment, *pages, "--evict", "2")
    assert (code, stderr) == (0, "")
    before, first, second, after = stdout.splitlines()
    assert before.startswith("Before:  3 groups, 12 shards, ")
    assert first.startswith("evicted  page0_model: 4 shards, ")
    assert second.startswith("evicted  page1_model: 4 shards, ")
    assert after.startswith("After:   1 groups, 4 shards, ")
    assert names(pages) == [f"page2_model{tail}" for tail in TAILS]


def test_quickstart_evicts_no_more_than_there_is(environment: dict[str, str], pages: list[Path]) -> None:
    code, stdout, stderr = run(environment, *pages, "--evict", "5")
    assert (code, stderr) == (0, "")
    assert "After:   0 groups, 0 shards, 0.0 KiB; 3 groups, " in stdout
    assert names(pages) == []


def test_ctrl_c_ends_watching_with_a_summary(environment: dict[str, str], pages: list[Path]) -> None:
    code, stdout = interrupted(environment, *pages)
    assert code == 0
    assert "3 groups, 12 shards" in stdout.splitlines()[-1]


def test_ctrl_c_ends_the_demonstration_and_leaves_nothing(environment: dict[str, str]) -> None:
    code, stdout = interrupted(environment)
    assert code == 130
    assert stdout.endswith("\nStopped.\n")
    assert os.listdir(environment["TMPDIR"]) == []


@pytest.mark.parametrize("arguments", ["--evict 1", "--seconds 1", "/nowhere", "/nowhere --evict x"])
def test_quickstart_refuses_what_makes_no_sense(environment: dict[str, str], arguments: str) -> None:
    code, stdout, stderr = run(environment, *arguments.split())
    assert (code, stdout) == (2, "")
    assert "quickstart" in stderr
    assert "Traceback" not in stderr
