"""The example of an embedding server, as a process, over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEADLINE, eventually, on_disk
from tests.test_examples import blocking, command_of

PAGE = bytes(range(256)) * 400


class Served:
    """A server that runs, and what it said."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.url, self.line = line.split(maxsplit=1)

    def ask(self, path: str, data: bytes | None = None, method: str = "") -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, data, method=method or ("PUT" if data is not None else "GET"))
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def health(self) -> dict[str, dict[str, Any]]:
        status, body = self.ask("/health")
        assert status == 200
        health: dict[str, dict[str, Any]] = json.loads(body)
        return health


@contextmanager
def served(environment: dict[str, str], command: list[str]) -> Iterator[Served]:
    """Until SIGTERM, which goes to the scout as well; then nothing went wrong and nothing is left."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            yield Served(process, line)
            os.killpg(process.pid, signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert (process.returncode, stdout, stderr) == (0, "stopped\n", "")
    assert os.listdir(environment["TMPDIR"]) == []


def test_writes_reads_and_tells(environment: dict[str, str]) -> None:
    with served(environment, command_of("embed_in_server")) as server:
        assert server.line == "serves 0 pages\n"
        assert server.ask("/pages/0a") == (404, b"")
        for page in range(5):
            assert server.ask(f"/pages/0{page}", PAGE + bytes([page])) == (201, b"")
        for page in range(5):
            assert server.ask(f"/pages/0{page}") == (200, PAGE + bytes([page]))
        eventually(lambda: server.health()["index"]["groups"] == 5, "the index knows them")
        assert server.health()["index"]["shards"] == 10
        assert server.health()["cleaner"]["running"]
        status, metrics = server.ask("/metrics")
        assert status == 200
        assert b'nixl_index_state{state="live"} 1.0' in metrics
        assert b"nixl_index_groups 5.0" in metrics
        assert b"nixl_index_cleaner_running 1.0" in metrics


def test_evicts_what_was_not_read(environment: dict[str, str]) -> None:
    with served(environment, command_of("embed_in_server", "--capacity", "1MiB")) as server:
        for page in range(1, 30):
            assert server.ask(f"/pages/{page:02x}", PAGE) == (201, b"")
            eventually(
                lambda: server.health()["index"]["groups"], "the index knows the first: a touch is for what it knows"
            )
            assert server.ask("/pages/01") == (200, PAGE), "it was read all the time"
            eventually(lambda: server.health()["index"]["groups"] <= 8, "the others go")
        assert server.ask("/pages/02") == (404, b"")
        eventually(lambda: server.health()["cleaner"]["evicted_groups"] >= 20, "it counts them")


def test_base_dirs_of_ones_own_are_left_alone_unless_told(environment: dict[str, str], bases: list[Path]) -> None:
    for first, evict in ((0, []), (20, ["--evict"])):
        with served(environment, command_of("embed_in_server", *bases, "--capacity", "1MiB", *evict)) as server:
            for page in range(first, first + 20):
                assert server.ask(f"/pages/{page:02x}", PAGE) == (201, b"")
            if evict:
                eventually(lambda: len(on_disk(bases)) <= 16, "the oldest go")
            else:
                ticks = server.health()["cleaner"]["ticks"]
                eventually(lambda ticks=ticks: server.health()["cleaner"]["ticks"] > ticks, "it ticks")  # type: ignore[misc]
                assert len(on_disk(bases)) == 40


@pytest.mark.parametrize(
    ("path", "data", "method", "status"),
    [
        ("/", None, "", 404),
        ("/pages/XYZ", b"x", "", 404),
        ("/pages/../../etc/passwd", None, "", 404),
        ("/pages/0a", None, "DELETE", 400),
        ("/pages/0a", b"x", "POST", 400),
    ],
)
def test_refuses_what_makes_no_sense(
    environment: dict[str, str], path: str, data: bytes | None, method: str, status: int
) -> None:
    with served(environment, command_of("embed_in_server")) as server:
        assert server.ask(path, data, method)[0] == status


def test_a_full_disk_is_an_answer(environment: dict[str, str], bases: list[Path]) -> None:
    """Here a bucket that is no directory, which every user meets alike."""
    for number in range(256):
        (bases[0] / f"{number:02x}").touch()
    with served(environment, command_of("embed_in_server", bases[0])) as server:
        assert server.ask("/pages/0a", b"x")[0] == 507


def test_without_prometheus_client(environment: dict[str, str]) -> None:
    with served(environment, blocking("prometheus_client", "embed_in_server")) as server:
        assert server.ask("/metrics") == (200, b"nixl_index_groups 0\n")
