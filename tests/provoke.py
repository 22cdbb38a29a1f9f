"""How the tests make failures happen: a scout that stands still, a full event queue, limits that are met."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from nixl_index import GroupIndex, records
from nixl_index.link import Isolation
from nixl_index.scout import Scout
from tests.support import DEADLINE, audit, eventually, write

ROOT = Path(__file__).parents[1]


@contextmanager
def held(index: GroupIndex) -> Iterator[None]:
    """The scout does nothing meanwhile: a process is stopped, a thread waits before the next turn of its loop."""
    pid = index.health().scout_pid
    if pid:
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: _stopped(pid), "the scout is stopped")
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        return
    turn, waits, released = Scout._turn, threading.Event(), threading.Event()

    def wait_and_turn(scout: Scout) -> None:
        waits.set()
        released.wait()
        turn(scout)

    try:
        with patch.object(Scout, "_turn", wait_and_turn):
            index._observer.send(records.Look(0, [], []))  # or it would notice only with the next event
            assert waits.wait(DEADLINE)
            yield
    finally:
        released.set()


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def flood(bucket: Path) -> None:
    """More events of a bucket than the queue of the kernel holds, without a change to any shard."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    paths = [bucket / "one.tmp", bucket / "two.tmp"]
    for path in paths:
        path.touch()
    for _ in range(limit // 2 + 10):
        for path in paths:  # in turn: the kernel merges an event with an equal one right before it
            os.utime(path)
    for path in paths:
        path.unlink()


@contextmanager
def no_descriptors(index: GroupIndex) -> Iterator[None]:
    """Where the scout runs, no file can be opened meanwhile: EMFILE. Of the test's own process too, for a thread."""
    pid = index.health().scout_pid
    if pid:
        used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
        lowest = next(fd for fd in range(len(used) + 1) if fd not in used)
    else:
        os.close(lowest := os.dup(0))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # that it lives is for the test to say
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def reader_stands_still(index: GroupIndex) -> Iterator[None]:
    """The host does not come to apply what the scout tells."""
    with index._follower.lock:
        yield


def settle_at_once(index: GroupIndex) -> None:
    """Do not wait for late events before a find counts as missed."""
    index._follower.writer.missed._grace = 0.1


class Log(logging.Handler):
    """What the library logs, in a process without pytest."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        logging.getLogger("nixl_index").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def count(self, words: str) -> int:
        """How many messages hold these words."""
        return sum(words in text for text in self.texts)


# --- processes with limits of their own ---

OWN_LIMITS = ("unshare", "--user", "--map-root-user")
"""A user namespace: what it may have of inotify is its own affair."""
NO_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root without the right to read what its mode forbids."""


def run_scene(wrapper: Sequence[str], scene: Callable[..., None], *arguments: object) -> None:
    """Run a function of a test module, with arguments as strings, in a process under `wrapper`; skip where the machine
    has no such thing."""
    if "setpriv" in wrapper and os.geteuid() != 0 and "unshare" not in wrapper:
        wrapper = ()  # no user but root reads what its mode forbids
    if wrapper:
        try:
            probe = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        if probe.returncode:
            pytest.skip(f"{' '.join(wrapper)}: {probe.stderr.strip()}")
    code = f"import sys; from {scene.__module__} import {scene.__name__} as scene; scene(*sys.argv[1:])"
    command = [*wrapper, sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert not done.returncode, done.stderr


def set_limit(name: str, value: int) -> None:
    """Set a limit of this process's own user namespace: `max_inotify_watches`, `max_inotify_instances`."""
    own = Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]
    assert own, "not the limits of the machine"
    Path(f"/proc/sys/user/{name}").write_text(str(value))


class Nothing:
    """Compare with what there was before: nothing is left running or open."""

    def __init__(self) -> None:
        self._threads, self._descriptors = set(threading.enumerate()), _open_descriptors()

    def is_left(self) -> bool:
        """Are there as many threads, children and descriptors as before?"""
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
        return set(threading.enumerate()) == self._threads and not children and _open_descriptors() == self._descriptors


def _open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


# --- an index that polls ---


def opened(isolation: str, base: str | Path, **options: Any) -> GroupIndex:
    """An index whose directories without a watch are listed often."""
    polled = {"poll_interval": 0.1, "rescan_interval": None, **options}
    return GroupIndex.watch(base, isolation=cast("Isolation", isolation), **polled)


def keys(index: GroupIndex) -> list[str]:
    """Those of its groups, sorted."""
    return sorted(group.key for group in index)


def assert_follows(index: GroupIndex, base: Path) -> None:
    """All is watched again, and the index is the disk."""
    eventually(lambda: index.health().state == "live", "everything is watched again")
    write(base / "00" / "last_m", b"x", 99)
    audit(index, [base])
    assert "last_m" in index
    assert (index.health().unwatched, index.health().mended) == (0, 0)
