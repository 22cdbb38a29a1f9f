"""The drop-in for SGLang, started: its thread, and the index that it keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nixl_index import GroupIndex
from nixl_index.sglang import HiCacheL3Cleaner
from tests.mounts import Mounts
from tests.support import eventually, on_disk, write_page
from tests.test_sglang import dirs, falling


@pytest.fixture
def started() -> Iterator[Callable[..., HiCacheL3Cleaner]]:
    """Makes cleaners that are started, and stopped at the end."""
    made: list[HiCacheL3Cleaner] = []

    def start(*arguments: Any, **options: Any) -> HiCacheL3Cleaner:
        cleaner = HiCacheL3Cleaner(*arguments, **options)
        made.append(cleaner)
        cleaner.start()
        return cleaner

    yield start
    for cleaner in made:
        cleaner.stop()


def test_only_rank_0_starts(bases: list[Path], started: Callable[..., HiCacheL3Cleaner]) -> None:
    assert started(dirs(bases), 1)._thread is None
    cleaner = HiCacheL3Cleaner(dirs(bases), 0)
    assert cleaner._thread is None
    cleaner.stop()
    cleaner = started(dirs(bases), 0)
    thread = cleaner._thread
    assert thread is not None
    assert thread.is_alive()
    cleaner.start()
    assert cleaner._thread is thread
    cleaner.stop()
    cleaner.stop()
    assert cleaner._thread is None
    assert not thread.is_alive()


def test_a_disk_that_is_full(tmp_path: Path, started: Callable[..., HiCacheL3Cleaner]) -> None:
    with Mounts(tmp_path) as mounts:
        base = mounts.mount("tmpfs", tmp_path / "disk")
        mounts.remount(base, "size=8m")
        for page in range(55):
            write_page([base], page, data=b"x" * (64 << 10))
        cleaner = started(str(base), 0, interval_sec=0.05)
        eventually(lambda: cleaner._disk_usage_pct(str(base)) <= 70, "it is cleaned")
        assert 0 < len(on_disk([base])) < 110
        assert cleaner._tick() is False
        cleaner.stop()


def test_replaced_before_it_starts(bases: list[Path], started: Callable[..., HiCacheL3Cleaner]) -> None:
    """The first round comes at once, as SGLang's does, not after the interval."""
    write_page(bases, 0)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0, interval_sec=3600)
    falling(cleaner, bases, 90, 60)
    cleaner.start()
    try:
        eventually(lambda: not on_disk(bases), "it evicts")
    finally:
        cleaner.stop()


def test_replaced_usage_is_believed_by_its_thread(tmp_path: Path) -> None:
    """The disk is full, and what was put in its place says that it is not: nothing goes."""
    with Mounts(tmp_path) as mounts:
        base = mounts.mount("tmpfs", tmp_path / "disk")
        mounts.remount(base, "size=8m")
        for page in range(55):
            write_page([base], page, data=b"x" * (64 << 10))
        cleaner = HiCacheL3Cleaner(str(base), 0, interval_sec=0.05)
        asked = falling(cleaner, [base], 10)
        cleaner.start()
        try:
            eventually(lambda: len(asked) > 5, "it asks")
            assert len(on_disk([base])) == 110
        finally:
            cleaner.stop()


def test_a_started_cleaner_has_one_index(
    bases: list[Path], started: Callable[..., HiCacheL3Cleaner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one too: a tick opens no other."""
    cleaner = started(dirs(bases), 0, interval_sec=3600)
    eventually(lambda: cleaner._cleaner, "it follows")
    monkeypatch.setattr(GroupIndex, "watch", lambda *paths, **options: pytest.fail("another index"))
    assert cleaner._tick() is False


def test_directories_that_appear_later(
    bases: list[Path], tmp_path: Path, started: Callable[..., HiCacheL3Cleaner]
) -> None:
    late = [tmp_path / "late0", tmp_path / "late1"]
    started(dirs(late), 0, interval_sec=0.05, capacity_gb=1e-6)
    for base in late:
        write_page([base], 0)
        eventually(lambda: not on_disk(late), "it is found and cleaned")


def test_stop_while_a_tick_runs(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the round that is under way, which stops at the next question."""
    for page in range(200):
        write_page(bases, page)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0, interval_sec=0.01, recheck_groups=1)
    asked = threading.Event()
    stopped = threading.Event()

    def usage(path: str) -> float:
        asked.set()
        stopped.wait(0.01)
        return 99.0

    cleaner._disk_usage_pct = usage  # type: ignore[method-assign]
    cleaner.start()
    assert asked.wait(20)
    cleaner.stop()
    stopped.set()
    left = len(on_disk(bases))
    assert left > 0
    assert left % 2 == 0
    assert cleaner._thread is None
    assert cleaner._index is None
