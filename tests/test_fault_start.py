"""No room to start a scout process: FAILURES 45. The scout runs in a thread then, and the index says so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index import GroupIndex, NixlIndexError, emitter
from tests.support import DEADLINE, audit, eventually, write_page

Watch = Callable[..., GroupIndex]


def _script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "interpreter"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(params=["None", "empty", "missing", "directory", "true", "false", "hangs", "babbles", "noisy"])
def no_python(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that is none, as `sys.executable` of an embedded one may be."""
    executable = {
        "None": None,
        "empty": "",
        "missing": "/nowhere/python",
        "directory": str(tmp_path),
        "true": shutil.which("true"),
        "false": shutil.which("false"),
        "hangs": _script(tmp_path, "exec sleep 1000"),
        "babbles": _script(tmp_path, "exec yes"),
        "noisy": _script(tmp_path, "echo it is broken >&2; exit 3"),
    }[request.param]
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(emitter, "START_SECONDS", 1.0)
    return str(request.param)


def test_f45_no_interpreter(
    process_watch: Watch, bases: list[Path], no_python: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_page(bases, 0)
    index = process_watch(*bases)
    write_page(bases, 1)
    audit(index, bases)
    health = index.health()
    assert (health.isolation, health.scout_pid, health.state) == ("thread", 0, "live")
    assert "using a thread" in caplog.text
    assert (no_python != "noisy") or "it is broken" in caplog.text
    assert len(index) == 2


def test_f45_no_interpreter_any_more(
    process_watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was there when the index started, and is gone when the scout has to be replaced."""
    write_page(bases, 0)
    index = process_watch(*bases)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    os.kill(index.health().scout_pid, signal.SIGKILL)
    write_page(bases, 1)
    eventually(lambda: index.health().scout_restarts == 1, "another scout runs")
    audit(index, bases)
    assert index.health().isolation == "thread"
    assert "using a thread" in caplog.text


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A base dir that any user may reach: pytest's own are its user's."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


_CROWDED = """if True:
    import logging, os, resource, sys, threading
    from pathlib import Path
    from nixl_index import GroupIndex, NixlIndexError
    base, room = Path(sys.argv[1]), sys.argv[2] == "room"
    nobody = 64_321  # a user without any other process: the limit counts all that the user has
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, nobody, nobody)
    (base / "00").mkdir()
    (base / "00" / "a_m").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    said = []

    class Room(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
            if room:  # somebody else's processes have ended: threads count too
                resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

    logging.getLogger("nixl_index").addHandler(Room())
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    descriptors = sorted(os.listdir("/proc/self/fd"))
    if room:
        with GroupIndex.watch(base) as index:
            assert index.health().isolation == "thread"
            assert "a_m" in index
            index.sync(20)
        assert "Resource temporarily unavailable" in said[0], said
    else:
        try:
            GroupIndex.watch(base)
        except (NixlIndexError, OSError) as error:
            assert "can't start new thread" in str(error) or "temporarily unavailable" in str(error), error
        else:
            raise AssertionError("it started")
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == 1
"""


@pytest.mark.parametrize("room", ["room", "none"])
def test_f45_no_room_for_a_process(reachable: Path, room: str) -> None:
    """EAGAIN by RLIMIT_NPROC: a thread takes over; where no thread can be had either, that is the error, and nothing is
    left behind."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user with a limit of its own")
    done = subprocess.run(
        [sys.executable, "-c", _CROWDED, reachable, room],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_f45_neither_process_nor_thread(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Faked: there is no other way to have threads run out between those that run already."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(11, "no room")

    monkeypatch.setattr("nixl_index.link.Link._start_process", fail)
    monkeypatch.setattr("nixl_index.link.Link._start_thread", fail)
    with pytest.raises((NixlIndexError, OSError), match="no room"):
        GroupIndex.watch(*bases)
