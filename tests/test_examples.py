"""The examples run, as a user runs them, and say what is true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from tests.support import DEADLINE, write

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
TAILS = ("_0_2_k", "_0_2_v", "_1_2_k", "_1_2_v")


@pytest.fixture
def pages(bases: list[Path]) -> list[Path]:
    """The base dirs, with three pages of four shards, half of them on each; `page0` is the oldest."""
    for number in range(3):
        for place, tail in enumerate(TAILS):
            write(bases[place % 2] / "0a" / f"page{number}_model{tail}", bytes(4096), 1_700_000_000 + number)
    return bases


def names(bases: list[Path]) -> list[str]:
    return sorted(path.name for base in bases for path in base.glob("*/*"))


def command_of(example: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-W", "error", str(ROOT / "examples" / f"{example}.py"), *map(str, arguments)]


def run(environment: dict[str, str], *arguments: str | Path, example: str = "quickstart") -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    command = command_of(example, *arguments)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    return ran.returncode, ran.stdout, ran.stderr


def interrupted(environment: dict[str, str], *arguments: str | Path) -> tuple[int, str]:
    """Exit code and stdout after a Ctrl-C that comes once the table has its first line; stderr is empty."""
    command = command_of("quickstart", *arguments)
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


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_says_how_to_run_it(environment: dict[str, str], example: str) -> None:
    text = (ROOT / "examples" / f"{example}.py").read_text()
    assert f"python {example}.py" in text or f"python examples/{example}.py" in text
    assert "temporary directory" in text


def test_sglang_dropin(environment: dict[str, str]) -> None:
    code, stdout, stderr = run(environment, example="sglang_dropin")
    assert (code, stderr) == (0, ""), stdout
    before, after = stdout.splitlines()
    assert before.startswith("100 pages, 400 files")
    assert after == "53 pages left, the newest ones, each one whole"
    assert os.listdir(environment["TMPDIR"]) == []


def test_lru_touch(environment: dict[str, str]) -> None:
    code, stdout, stderr = run(environment, example="lru_touch")
    assert (code, stderr) == (0, ""), stdout
    assert stdout.splitlines() == ["FIFO: 178 of 240 reads were hits", "LRU : 236 of 240 reads were hits"]
    assert os.listdir(environment["TMPDIR"]) == []


def is_an_eviction(topic: str, text: str) -> bool:
    message = json.loads(text)
    assert message.keys() == {"key", "model", "shards", "bytes"}
    assert message["key"].endswith(f"_{topic}")
    return bool(message["model"] == topic and message["shards"] == 1 and message["bytes"] >= 32 << 10)


def test_publish_evictions_prints(environment: dict[str, str]) -> None:
    code, stdout, stderr = run(environment, "--seconds", "1", example="publish_evictions")
    assert (code, stderr) == (0, "")
    lines = stdout.splitlines()
    assert lines
    assert all(is_an_eviction(*line.split(" ", 1)) for line in lines)


def test_publish_evictions_over_zeromq(environment: dict[str, str]) -> None:
    """To a subscriber of one model, who comes when it is under way already."""
    arguments = ("--endpoint", "tcp://127.0.0.1:*", "--seconds", "600")
    command = command_of("publish_evictions", *arguments)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout
        endpoint = ran.stdout.readline().split()[-1]
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.rcvtimeo = int(1000 * DEADLINE)
            socket.connect(endpoint)
            socket.subscribe("deepseek-ai-DeepSeek-V3")
            for _ in range(5):
                topic, text = socket.recv_multipart()
                assert topic == b"deepseek-ai-DeepSeek-V3"
                assert is_an_eviction(topic.decode(), text.decode())
        ran.send_signal(signal.SIGINT)
        stdout, stderr = ran.communicate(timeout=DEADLINE)
    assert (ran.returncode, stdout, stderr) == (0, "stopped\n", "")
    assert os.listdir(environment["TMPDIR"]) == []


def test_publish_evictions_says_what_it_lacks(environment: dict[str, str]) -> None:
    code, stdout, stderr = without("zmq", environment, "publish_evictions", "--endpoint", "tcp://127.0.0.1:*")
    assert (code, stdout) == (2, "")
    assert "pip install pyzmq" in stderr


def without(module: str, environment: dict[str, str], example: str, *arguments: str) -> tuple[int, str, str]:
    """The same where this module is not installed."""
    ran = subprocess.run(
        blocking(module, example, *arguments), env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


def blocking(module: str, example: str, *arguments: str) -> list[str]:
    *python, script = command_of(example)
    code = "import runpy, sys; sys.modules[{!r}] = None; del sys.argv[0]; runpy.run_path({!r}, None, '__main__')"
    return [*python, "-c", code.format(module, script), script, *arguments]
