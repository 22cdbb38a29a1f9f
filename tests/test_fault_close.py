"""Closing at a bad moment, and company on one path: FAILURES 48 to 50."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import ClosedError, Eviction, Evictor, GroupIndex
from nixl_index.link import Isolation
from tests.support import DEADLINE, audit, eventually, write_page

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


# --- 48: closing ---


def _many(bases: list[Path], count: int = 1_500) -> list[list[Path]]:
    return [write_page(bases, page) for page in range(count)]


def test_f48_close_during_the_first_scan(isolation: Isolation, bases: list[Path]) -> None:
    _many(bases)
    for _ in range(3):
        index = GroupIndex.watch(*bases, isolation=isolation, block=False)
        index.close()
        assert index.health().state == "closed"
        with pytest.raises(ClosedError):
            index.wait_ready(DEADLINE)
        with pytest.raises(ClosedError):
            index.sync(DEADLINE)


def test_f48_close_while_others_wait_for_the_first_scan(isolation: Isolation, bases: list[Path]) -> None:
    _many(bases)
    index = GroupIndex.watch(*bases, isolation=isolation, block=False)
    seen: list[BaseException] = []

    def wait(call: Callable[[float], None]) -> None:
        try:
            call(DEADLINE)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            seen.append(error)

    with index._follower.lock:  # the scan cannot end
        calls = (index.wait_ready, index.sync, lambda seconds: index.rescan(timeout=seconds))
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: len(index._follower.asks._waiting) == 2, "they wait")
    index.close()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert all(isinstance(error, ClosedError) for error in seen)


def test_f48_close_during_a_reconcile(isolation: Isolation, bases: list[Path]) -> None:
    _many(bases)
    index = GroupIndex.watch(*bases, isolation=isolation)

    def rescan() -> None:
        with pytest.raises(ClosedError):
            index.rescan()

    thread = threading.Thread(target=rescan)
    thread.start()
    eventually(lambda: index._follower.asks._waiting or not thread.is_alive(), "it has begun")
    index.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_f48_close_during_an_eviction(isolation: Isolation, bases: list[Path]) -> None:
    """The caller is told, and whatever was evicted is whole."""
    pages = _many(bases)
    index = GroupIndex.watch(*bases, isolation=isolation)
    seen: list[Eviction | BaseException] = []

    def evict() -> None:
        try:
            seen.append(Evictor(index).evict_oldest(10**6))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            seen.append(error)

    thread = threading.Thread(target=evict)
    thread.start()
    eventually(lambda: len(index) < 1_400, "it is under way")
    index.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert isinstance(seen[0], ClosedError)
    left = [sum(path.exists() for path in paths) for paths in pages]
    assert set(left) == {0, 2}


def test_f48_close_from_many_threads_and_again(isolation: Isolation, bases: list[Path]) -> None:
    index = GroupIndex.watch(*bases, isolation=isolation)
    start = threading.Barrier(4)

    def close() -> None:
        start.wait()
        index.close()
        assert not index._observer.is_alive()  # each returns when it is done, whoever does it

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    index.close()


# --- 49 and 50: others on the same path ---


def test_f49_writers_killed_while_they_write(watch: Watch, bases: list[Path]) -> None:
    """What they had open is closed by the kernel: half a file is a file, with the size that it has."""
    code = """if True:
        import os, sys
        fds = [os.open(f"{sys.argv[1]}/00/page{n}_m_0_1", os.O_CREAT | os.O_WRONLY) for n in range(20)]
        for fd in fds:
            os.write(fd, b"x" * 10_000)
        print("written", flush=True)
        while True:
            os.write(fds[0], b"y")
            os.pwrite(fds[1], b"z", 0)
    """
    (bases[0] / "00").mkdir()
    index = watch(*bases)
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code, bases[0]], stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == b"written\n"
            index.sync(DEADLINE)
            writer.kill()
        audit(index, bases)
        assert len(index) == 20
        assert index["page5_m"].disk_bytes >= 10_000
    assert len(Evictor(index).evict_oldest(20).evicted) == 20


def test_f50_two_indexes_that_evict_on_one_path(watch: Watch, bases: list[Path]) -> None:
    """Every file is unlinked once and accounted for once; both know what is left."""
    pages = [write_page(bases, page, data=b"x" * 5_000) for page in range(400)]
    size = sum(path.stat().st_blocks * 512 for paths in pages[:300] for path in paths)
    one, two = watch(*bases), watch(*bases)
    start, results = threading.Barrier(2), list[list[Eviction]]()

    def evict(index: GroupIndex) -> None:
        mine: list[Eviction] = []
        results.append(mine)
        start.wait()
        evictor = Evictor(index)
        while (oldest := index.oldest()) and oldest.recency_ns < 1_700_000_300 * 10**9:
            mine.append(evictor.evict_oldest())
            index.sync(DEADLINE)

    threads = [threading.Thread(target=evict, args=(index,)) for index in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    for index in (one, two):
        audit(index, bases)
    evictions = [eviction for mine in results for eviction in mine]
    assert not any(eviction.failed for eviction in evictions)
    gone = [path for paths in pages for path in paths if not path.exists()]
    assert sum(group.shards for eviction in evictions for group in eviction.evicted) == len(gone)
    assert not any(path.exists() for paths in pages[:300] for path in paths)
    assert size <= sum(eviction.disk_bytes for eviction in evictions)
    # Either may pop one more than is due, while the other's last one is on its way.
    assert len(gone) <= 604
    assert all(path.exists() for paths in pages[302:] for path in paths)
