"""Clocks that are wrong, and touches: FAILURES 38 and 39."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex
from tests.support import DEADLINE, eventually, page_key, write, write_page

Watch = Callable[..., GroupIndex]


def test_f38_a_future_mtime_counts_as_of_when_it_was_seen(watch: Watch, bases: list[Path]) -> None:
    """Younger than what came before, older than what comes after; a reconcile and a rewrite of another kind of clock
    change nothing."""
    before = time.time_ns()
    listed = write(bases[0] / "00" / "listed_m", b"x", time.time() + 10**6)
    old = write(bases[0] / "00" / "old_m", b"x", 5)
    index = watch(*bases)
    told = write(bases[0] / "00" / "told_m", b"x", time.time() + 2 * 10**6)
    index.sync(DEADLINE)
    recencies = [index[key].recency_ns for key in ("listed_m", "told_m")]
    assert before <= recencies[0] <= recencies[1] <= time.time_ns()
    assert [group.key for group in index] == ["old_m", "listed_m", "told_m"]
    time.sleep(0.02)  # the coarse clock of the file system
    new = write(bases[0] / "00" / "new_m")
    index.rescan(timeout=DEADLINE)
    assert [group.key for group in index] == ["old_m", "listed_m", "told_m", "new_m"]
    assert [index[key].recency_ns for key in ("listed_m", "told_m")] == recencies
    assert index.health().mended == 0
    evicted = Evictor(index).evict_oldest(3).evicted
    assert [group.key for group in evicted] == ["old_m", "listed_m", "told_m"]
    assert [path.exists() for path in (old, listed, told, new)] == [False, False, False, True]


@pytest.fixture
def roomy(bases: list[Path]) -> Iterator[list[Path]]:
    """A base on a file system that keeps any 64-bit second: a tmpfs that is there already."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    made = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield [made]
    shutil.rmtree(made)


def test_f38_mtimes_beyond_what_64_bits_of_ns_hold(watch: Watch, roomy: list[Path]) -> None:
    far = 1 << 62
    paths = {key: roomy[0] / "00" / key for key in ("negative_m", "zero_m", "now_m", "far_m", "farther_m", "past_m")}
    for path, when in zip(paths.values(), (-1, 0, int(time.time()), far, far + 1, -far), strict=True):
        write(path)
        os.utime(path, (when, when))
        assert path.stat().st_mtime_ns == when * 10**9
    index = watch(*roomy)
    assert [group.key for group in index][:4] == ["past_m", "negative_m", "zero_m", "now_m"]
    assert index["far_m"].recency_ns <= time.time_ns()
    os.utime(paths["past_m"], (-far - 5, -far - 5))
    os.utime(paths["now_m"], (-2, -2))
    index.sync(DEADLINE)
    assert [group.key for group in index][:4] == ["past_m", "now_m", "negative_m", "zero_m"]
    evicted = Evictor(index).evict_oldest(100)
    assert len(evicted.evicted) == 6
    assert not evicted.skipped
    assert not any(path.exists() for path in paths.values())
    index.close()  # saturated mtimes are no mtimes of the disk's


def test_f38_equal_mtimes_have_an_order(watch: Watch, bases: list[Path]) -> None:
    for n in (3, 1, 2, 0):
        write(bases[n % 2] / "00" / f"page{n}_m", b"x", 5)
    index = watch(*bases)
    assert [group.key for group in index] == [f"page{n}_m" for n in range(4)]
    write(bases[0] / "01" / "page00_m", b"x", 5)
    index.sync(DEADLINE)
    assert [group.key for group in Evictor(index).evict_oldest(2).evicted] == ["page00_m", "page0_m"]


def test_f38_a_clock_that_goes_back(watch: Watch, bases: list[Path]) -> None:
    """The newest shard decides: a group goes back only when all of it does."""
    pages = [write_page(bases, page) for page in range(3)]
    index = watch(*bases)
    os.utime(pages[2][0], (1, 1))
    index.sync(DEADLINE)
    assert [group.key for group in index] == [page_key(page) for page in (0, 1, 2)]
    os.utime(pages[2][1], (1, 1))
    index.sync(DEADLINE)
    assert [group.key for group in index] == [page_key(page) for page in (2, 0, 1)]
    assert [group.key for group in Evictor(index).evict_oldest().evicted] == [page_key(2)]


def test_f39_utime_is_a_touch(watch: Watch, bases: list[Path]) -> None:
    """Each touch, by any of a group's shards, sends the group to the young end; atime alone does not."""
    pages = [write_page(bases, page) for page in range(4)]
    index = watch(*bases)
    for turn, page in enumerate((0, 2, 1, 0, 3)):
        os.utime(pages[page][turn % 2], (5, 1_710_000_000 + turn))
        index.sync(DEADLINE)
        assert [group.key for group in index][-1] == page_key(page)
    assert [group.key for group in index] == [page_key(page) for page in (2, 1, 0, 3)]
    os.utime(pages[2][0], ns=(time.time_ns(), pages[2][0].stat().st_mtime_ns))
    index.sync(DEADLINE)
    assert [group.key for group in Evictor(index).evict_oldest(2).evicted] == [page_key(page) for page in (2, 1)]
    os.utime(pages[0][0])  # now
    index.sync(DEADLINE)
    assert [group.key for group in index] == [page_key(page) for page in (3, 0)]


def test_f39_a_touch_saves_from_an_eviction_that_races_it(watch: Watch, bases: list[Path]) -> None:
    """Not synced: either the event comes first and the group is young, or the look before the unlink sees it."""
    pages = [write_page(bases, page) for page in range(40)]
    index = watch(*bases)
    evictor, gone = Evictor(index), set()
    for page in range(0, 40, 2):
        os.utime(pages[page][1], (1_720_000_000 + page, 1_720_000_000 + page))
        gone |= {group.key for group in evictor.evict_oldest().evicted}
    assert gone == {page_key(page) for page in range(1, 40, 2)}
    assert all(path.exists() for paths in pages[::2] for path in paths)
    eventually(lambda: len(index) == 20, "what was evicted is out of the index")
