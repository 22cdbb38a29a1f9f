"""True LRU: touches, reads that count as touches, pins; and what keeps a group out of its turn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, records
from nixl_index.order import GroupOrder
from nixl_index.quarantine import FIRST_SECONDS, MAX_SECONDS, Quarantine
from tests.provoke import ROOT
from tests.support import DEADLINE, eventually, page_key, write, write_page

Watch = Callable[..., GroupIndex]


def order(index: GroupIndex) -> list[str]:
    return [group.key for group in index]


def make(bases: list[Path], keys: str) -> dict[str, Path]:
    return {key: write(bases[0] / "00" / f"{key}_m", b"x", 1_000 + at) for at, key in enumerate(keys)}


# --- touch ---


def test_touch(watch: Watch, bases: list[Path]) -> None:
    make(bases, "abcd")
    index = watch(*bases)
    assert index.touch(["b_m", "unknown", "a_m"], 5_000 * 10**9) == 2
    assert order(index) == ["c_m", "d_m", "a_m", "b_m"]
    assert index.touch(["b_m"], 10) == 1, "known, and none the older for it"
    assert order(index) == ["c_m", "d_m", "a_m", "b_m"]
    assert index.touch(iter(["c_m"])) == 1
    assert order(index) == ["d_m", "a_m", "b_m", "c_m"]
    assert index.touch([]) == 0
    with pytest.raises(TypeError, match="a_m"):
        index.touch("a_m")
    assert [group.key for group in Evictor(index).evict_oldest(2).evicted] == ["d_m", "a_m"]


def test_a_touch_costs_no_walk() -> None:
    """O(log n): the keys that it compares, counted, are few, in a large order and in a small one."""
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__lt__(self, other)

        __hash__ = str.__hash__

    def cost(groups: int) -> int:
        nonlocal compared
        built = GroupOrder()
        built.add_directory(0)
        for number in range(groups):
            built.upsert(Counted(f"{number:06}"), "_m", 0, 1, 1)  # equally old: the keys decide
        built.open()
        compared = 0
        for number in range(0, groups, groups // 100):
            built.touch(f"{number:06}", 2)
        return compared

    assert cost(50_000) < 20 * max(cost(1_000), 1_000)


# --- reads ---


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_a_read_counts_as_a_touch(watch: Watch, bases: list[Path], flags: int) -> None:
    """Read-only, and as SGLang's fd mode reads: opened for writing, and nothing written."""
    paths = make(bases, "abc")
    index = watch(*bases, reads=True)
    for key in "ab":
        fd = os.open(paths[key], flags)
        os.read(fd, 10)
        os.close(fd)
        index.sync(DEADLINE)
        eventually(lambda key=key: order(index)[-1] == f"{key}_m", "it is the youngest")  # type: ignore[misc]
    assert order(index) == ["c_m", "a_m", "b_m"]
    assert index["a_m"].mtime_ns == 1_000 * 10**9, "what was read is what it was"


def test_without_reads_a_read_is_none(watch: Watch, bases: list[Path]) -> None:
    paths = make(bases, "abc")
    index = watch(*bases)
    for flags in (os.O_RDONLY, os.O_RDWR):
        os.close(os.open(paths["a"], flags))
    index.sync(DEADLINE)
    assert order(index) == ["a_m", "b_m", "c_m"]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_reads_are_told_once_a_second(watch: Watch, bases: list[Path], flags: int) -> None:
    """A hot shard is read thousands of times a second; the stream tells at most one of them a second."""
    paths = make(bases, "ab")
    index = watch(*bases, reads=True)
    told = 0
    handlers = index._follower._handlers
    for kind in (records.Reads, records.Shards):

        def count(message: records.Message, handler: Callable[..., None] = handlers[kind]) -> None:
            nonlocal told
            told += 1
            handler(message)

        handlers[kind] = count
    begun = time.monotonic()
    for _ in range(30):
        for _ in range(10):
            os.close(os.open(paths["a"], flags))
        index.sync(DEADLINE)  # the scout takes each ten as a batch of its own
    seconds = time.monotonic() - begun
    assert 1 <= told <= seconds + 2
    eventually(lambda: order(index) == ["b_m", "a_m"], "it was read")


# --- pins ---


def test_pins(watch: Watch, bases: list[Path]) -> None:
    make(bases, "abcd")
    index = watch(*bases)
    with index.pin(["a_m", "b_m", "unknown"]) as outer:
        assert outer.keys == {"a_m", "b_m", "unknown"}
        with index.pin(["a_m"]):
            assert order(index) == ["c_m", "d_m"]
        assert order(index) == ["c_m", "d_m"], "they nest"
        assert [group.key for group in Evictor(index).evict_oldest().evicted] == ["c_m"]
        popped = index.pop_oldest()
        assert popped is not None
        assert popped.key == "d_m"
        assert index.pop_oldest() is None
        index.restore(popped)
        write(bases[0] / "00" / "unknown", b"x", 1)
        index.sync(DEADLINE)
        assert order(index) == ["d_m"], "one that is formed while it is pinned is pinned"
        assert len(index) == 4
        outer.release()
        outer.release()
        assert order(index) == ["unknown", "a_m", "b_m", "d_m"]
    with pytest.raises(TypeError, match="a_m"):
        index.pin("a_m")
    with pytest.raises(RuntimeError), index.pin(["a_m"]):
        raise RuntimeError
    assert "a_m" in order(index)


_PINS_WHAT_IT_ASKS_FOR = """
import sys
import time
from nixl_index import GroupIndex
with GroupIndex.watch(sys.argv[1], isolation="thread") as index:
    with index.pin(key for key in ["a_m", "b_m"] if index[key].shards) as pin:
        assert pin.keys == {"a_m", "b_m"}
"""


def test_pins_keys_that_come_from_the_index(bases: list[Path]) -> None:
    """A generator that asks the index itself: no call of a user's runs under the lock. In a process of its own, which
    can be killed if it hangs."""
    make(bases, "abc")
    subprocess.run([sys.executable, "-c", _PINS_WHAT_IT_ASKS_FOR, bases[0]], cwd=ROOT, timeout=15, check=True)


# --- clear ---


def test_clear(watch: Watch, bases: list[Path]) -> None:
    """Of one model, named as the server names it, or all that is in the index; never a foreign file."""
    mine = [path for page in range(80) for path in write_page(bases, page)]
    theirs = [write(bases[0] / "00" / f"{page_key(page, 'Qwen-Qwen3')}_0_1") for page in range(3)]
    other = [write(bases[0] / "notes" / "a_m"), write(bases[0] / "00" / ".hidden"), write(bases[0] / "00" / "a_m.tmp")]
    index = watch(*bases)
    assert not Evictor(index).clear("Qwen/Qwen2")
    assert len(Evictor(index).clear("Qwen/Qwen3-32B").evicted) == 80
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in theirs)
    assert len(Evictor(index, dry_run=True).clear().evicted) == 3
    assert all(path.exists() for path in theirs)
    with index.pin([page_key(0, "Qwen-Qwen3")]):
        assert len(Evictor(index).clear().evicted) == 2
    assert len(Evictor(index).clear().evicted) == 1
    assert all(path.exists() for path in other)
    with pytest.raises(ValueError, match="''"):
        Evictor(index).clear("")


# --- quarantine ---


def test_the_back_off_of_a_quarantine() -> None:
    """From a minute, doubled with every failure, to an hour; forgotten with the first change."""
    now, built = 0.0, GroupOrder()
    built.add_directory(0)
    built.open()
    for key in "ab":
        built.upsert(key, "_m", 0, 1, 1)
    quarantine = Quarantine(built, lambda: now)
    waited = []
    for _ in range(8):
        quarantine.add("a")
        assert list(built) == ["b"]
        begun = now
        while "a" in quarantine:
            now += 30
            quarantine.release_due()
        waited.append(now - begun)
        assert list(built) == ["a", "b"]
        built.check()
    assert waited == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert (FIRST_SECONDS, MAX_SECONDS) == (60, 3600)
    quarantine.add("a")
    quarantine.forget("a")
    assert list(built) == ["a", "b"]
    quarantine.add("a")
    now += 60
    quarantine.release_due()
    assert len(quarantine) == 0
    quarantine.forget("unknown")
    built.check()
