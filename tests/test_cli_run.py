"""`nixl-index run`: the daemon."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from nixl_index import ClosedError, Eviction
from nixl_index.cli.main import main, make_parser
from nixl_index.cli.run import LoggingCleaner
from tests.support import DEADLINE, write_page
from tests.terminal import NIXL_INDEX, ROOT, environment

MARKS = ["--high", "80", "--low", "70"]
PAGES = 10


@pytest.fixture
def pages(bases: list[Path]) -> list[list[Path]]:
    """Pages of 8 KiB."""
    return [write_page(bases, page, data=bytes(4096)) for page in range(PAGES)]


def left(pages: list[list[Path]]) -> int:
    return sum(path.exists() for page in pages for path in page) // 2


@contextmanager
def daemon(env: dict[str, str], *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Started from where SIGINT is ignored, as a shell's background job is."""
    command = [*NIXL_INDEX, "run", *map(str, arguments)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        try:
            yield running
        finally:
            running.kill()


def read_until(running: subprocess.Popen[str], text: str) -> str:
    assert running.stderr
    told = ""
    while text not in told:
        line = running.stderr.readline()
        assert line, told
        told += line
    return told


def stopped(running: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """What else it says, and that it ends in order. (`communicate` would not see what `readline` read ahead.)"""
    running.send_signal(number)
    assert running.stderr
    assert running.stdout
    rest = running.stderr.read()
    assert running.stdout.read() == ""
    assert running.wait(DEADLINE) == 0
    return rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_evicts_logs_and_stops_in_order(
    bases: list[Path], pages: list[list[Path]], tmp_path: Path, number: signal.Signals
) -> None:
    with daemon(environment(tmp_path), *bases, *MARKS, "--capacity", "80KiB") as running:
        log = read_until(running, " evicted ")
        log += stopped(running, number)
    assert left(pages) == 7
    lines = log.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", line) for line in lines)
    scanning, following, evicted, stopping = (
        line.partition(" INFO ")[2]
        for line in lines
        if "nixl_index: " not in line  # the library has its own say
    )
    assert scanning == f"scanning {bases[0]}, {bases[1]}"
    assert following == "following 10 groups, 20 shards, 80.0 KiB; evicting at 80 % down to 70 %"
    assert re.fullmatch(
        r"evicted 3 groups, 24\.0 KiB in \d+\.\d s; 0 skipped, 0 failed; usage before: \S+ 100\.0 %, \S+ 100\.0 %",
        evicted,
    )
    assert stopping == f"{number.name}: stopping"


def test_a_dry_run_only_says_so(bases: list[Path], pages: list[list[Path]], tmp_path: Path) -> None:
    with daemon(environment(tmp_path), *bases, *MARKS, "--capacity", "80KiB", "--dry-run") as running:
        read_until(running, "would evict 3 groups, 24.0 KiB")
        stopped(running)
    assert left(pages) == PAGES


def test_verbose_names_each_group(bases: list[Path], pages: list[list[Path]], tmp_path: Path) -> None:
    with daemon(environment(tmp_path), *bases, *MARKS, "--capacity", "80KiB", "-v") as running:
        log = read_until(running, " evicted 3 groups")
        log += stopped(running)
    names = {path.name.removesuffix("_0_2").removesuffix("_1_2") for page in pages[:3] for path in page}
    assert set(re.findall(r"evicted (\S+_Qwen-Qwen3-32B)", log)) == names


def test_an_index_that_fails_ends_it(
    bases: list[Path],
    pages: list[list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tick(_cleaner: LoggingCleaner) -> Eviction:
        raise ClosedError("as if it were")

    monkeypatch.setattr(LoggingCleaner, "tick", tick)
    with own_signals():
        assert main(["run", *map(str, bases), *MARKS]) == 1
    assert "the index is live" in caplog.records[-1].getMessage()


@contextmanager
def own_signals() -> Iterator[None]:
    """What handles signals after a command is what did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_metrics_need_their_extra(bases: list[Path], tmp_path: Path) -> None:
    command = [*NIXL_INDEX, "run", *map(str, bases), *MARKS, "--metrics-port", "0"]
    ran = subprocess.run(
        command, env=environment(tmp_path, "prometheus_client"), capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr == ("nixl-index: --metrics-port needs prometheus_client: pip install 'nixl-index[prometheus]'\n")


def test_metrics_are_served_as_long_as_it_runs(bases: list[Path], pages: list[list[Path]], tmp_path: Path) -> None:
    with daemon(environment(tmp_path), *bases, *MARKS, "--metrics-port", "0") as running:
        log = read_until(running, "following ")
        url = re.findall(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", log)[0]
        with urlopen(url, timeout=DEADLINE) as answer:
            scraped = answer.read().decode().splitlines()
        stopped(running)
    assert f"nixl_index_groups {PAGES}.0" in scraped
    with pytest.raises(URLError):
        urlopen(url, timeout=DEADLINE)


def test_metrics_on_a_port_that_is_taken(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, own_signals():
        port = taken.getsockname()[1]
        assert main(["run", *map(str, bases), *MARKS, "--metrics-port", str(port)]) == 2
    assert f"metrics cannot be served on port {port}: Address already in use" in capsys.readouterr().err


def test_the_unit_runs_what_there_is() -> None:
    unit = (ROOT / "examples" / "nixl-index.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    program, *arguments = shlex.split(command)
    assert program.endswith("/nixl-index")
    options = make_parser().parse_args(arguments)
    assert options.paths == re.findall(r"^RequiresMountsFor=(.*)$", unit, re.M)[0].split()


def test_it_stops_while_it_scans(bases: list[Path], tmp_path: Path) -> None:
    for page in range(1_000):
        write_page(bases, page, data=b"")
    with daemon(environment(tmp_path), *bases, *MARKS) as running:
        read_until(running, "scanning")
        assert "Traceback" not in stopped(running)
