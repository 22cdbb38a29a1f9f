"""Every test fails that leaks a thread, a child process or a file descriptor, or whose index differs from the disk."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nixl_index import GroupIndex, Layout
from nixl_index.link import Isolation
from tests.support import audit, eventually

# A shell's background jobs, and all that they start, ignore it: the tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _children() -> set[int]:
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            pids.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except FileNotFoundError:
            continue
    return pids


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    threads, children, descriptors = set(threading.enumerate()), _children(), _descriptors()
    yield
    eventually(lambda: set(threading.enumerate()) <= threads, f"threads end: {threading.enumerate()}")
    eventually(lambda: _children() <= children, "child processes end")
    if not _descriptors().items() <= descriptors.items():
        gc.collect()  # only where it may matter: it takes longer than most tests
        assert _descriptors().items() <= descriptors.items()


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Where the scout runs. Both run the same tests."""
    value: Isolation = request.param
    return value


@pytest.fixture
def bases(tmp_path: Path) -> list[Path]:
    """Two empty base dirs."""
    made = [tmp_path / "disk0", tmp_path / "disk1"]
    for base in made:
        base.mkdir()
    return made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For examples: finds the package without it being installed, and keeps temporary directories where the test can
    look at them."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(temporary)}


def _watch(isolation: Isolation) -> Iterator[Callable[..., GroupIndex]]:
    """`GroupIndex.watch`, closed at the end, and compared with the disk before if it is still live then."""
    opened: list[tuple[GroupIndex, tuple[Path, ...], str]] = []

    def open_index(*paths: Path, **options: Any) -> GroupIndex:
        index = GroupIndex.watch(*paths, isolation=isolation, **options)
        layout = options.get("layout", Layout())
        opened.append((index, tuple(path.resolve() for path in paths), layout.pattern))
        return index

    try:
        yield open_index
        for index, paths, pattern in opened:
            if index.health().state == "live":
                audit(index, paths, pattern)
    finally:
        for index, _, _ in opened:
            index.close()


@pytest.fixture
def watch(isolation: Isolation) -> Iterator[Callable[..., GroupIndex]]:
    """`GroupIndex.watch`, in either isolation."""
    yield from _watch(isolation)


@pytest.fixture
def process_watch() -> Iterator[Callable[..., GroupIndex]]:
    """`GroupIndex.watch` with a scout process: for what can only happen to a process."""
    yield from _watch("process")
