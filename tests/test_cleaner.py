"""The cleaner: its settings, its thread, its hooks, torn groups first, and early ticks."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Cleaner, GroupIndex
from nixl_index.results import EvictedGroup, Eviction
from nixl_index.watermarks import Volume, Watermarks, parse_bytes
from tests.provoke import held
from tests.support import DEADLINE, eventually, on_disk, page_key, write_page

Watch = Callable[..., GroupIndex]


def keys(eviction: Eviction) -> list[str]:
    return [group.key for group in eviction.evicted]


def pages(*numbers: int) -> list[str]:
    return [page_key(number) for number in numbers]


def full(index: GroupIndex, **options: object) -> Cleaner:
    """One whose capacity is what is there now."""
    return Cleaner(index, 80, 70, capacity=index.nbytes, **options)  # type: ignore[arg-type]


# --- settings ---


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (2.5e9, 2_500_000_000),
        ("4096", 4096),
        ("512GiB", 512 << 30),
        (" 1.5 TB ", 1_500_000_000_000),
        ("3k", 3000),
        ("2mib", 2 << 20),
        ("7 B", 7),
    ],
)
def test_bytes(value: int | float | str, number: int) -> None:
    assert parse_bytes("capacity", value) == number


@pytest.mark.parametrize(
    "value", [0, -1, "", "GiB", "1 XB", "-3MiB", "1e9", "0", "5 5", math.nan, math.inf, True, None, [1], 0.4, "0.4B"]
)
def test_no_bytes(value: object) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        parse_bytes("capacity", value)  # type: ignore[arg-type]
    assert f"capacity is {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("high", "low"), [(70, 70), (70, 80), (80, -1), (101, 50), (math.nan, 50), (80, math.nan), ("80", 70), (True, 0)]
)
def test_bad_watermarks(watch: Watch, bases: list[Path], high: float, low: float) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Cleaner(watch(*bases), high, low)
    assert repr(high) in str(caught.value) or repr(low) in str(caught.value)


@pytest.mark.parametrize("name", ["interval", "torn_after", "capacity", "min_free"])
@pytest.mark.parametrize("value", [0, -1, math.nan, "soon", True])
def test_bad_settings(bases: list[Path], name: str, value: object) -> None:
    with GroupIndex.watch(*bases, isolation="thread") as index, pytest.raises((ValueError, TypeError)) as caught:
        Cleaner(index, **{name: value})  # type: ignore[arg-type]
    assert f"{name} is {value!r}" in str(caught.value)


def test_watermarks() -> None:
    marks = Watermarks(80, 70)
    cold, hot = Volume(frozenset({0}), 1000, 201), Volume(frozenset({0}), 1000, 200)
    assert marks.deficit(cold) is None
    assert marks.room(cold) == 1
    deficit = marks.deficit(hot)
    assert deficit is not None
    assert (deficit.disk_bytes, deficit.open) == (100, True)
    assert marks.room(hot) == 0
    of_files = marks.deficit(Volume(frozenset({0}), 1000, 900, 100, 10))
    assert of_files is not None
    assert (of_files.files, of_files.disk_bytes <= 0, of_files.open) == (20, True, True)
    assert Volume(frozenset({0}), 1000, 900, 0, 0).usage == 10, "a file system that counts no inodes"
    short = Watermarks(80, 70, min_free=950).deficit(Volume(frozenset({0}), 1000, 900))
    assert short is not None
    assert short.disk_bytes == 50


# --- a tick ---


def test_a_capacity_is_for_the_own_bytes(watch: Watch, bases: list[Path]) -> None:
    """Whatever else is on the volume. Down to low, then nothing more."""
    for page in range(20):
        write_page(bases, page)
    index = watch(*bases)
    each, cleaner = index[page_key(0)].disk_bytes, full(index)
    assert keys(cleaner.tick()) == pages(*range(6))
    assert cleaner.health().usage == {str(base): 100.0 for base in bases}
    assert (cleaner.health().evicted_groups, cleaner.health().freed_bytes) == (6, 6 * each)
    index.sync(DEADLINE)
    assert not cleaner.tick()
    assert cleaner.health().ticks == 2
    assert not Cleaner(index, 80, 70, capacity="1TiB").tick()


def test_a_dry_run_decides_alike(watch: Watch, bases: list[Path]) -> None:
    for page in range(20):
        paths = write_page(bases, page)
        if page in (4, 15):
            paths[0].unlink()
    index = watch(*bases)
    before = on_disk(bases)
    dry, wet = (full(index, torn_after=1, dry_run=dry_run) for dry_run in (True, False))
    would = dry.tick()
    assert on_disk(bases) == before
    assert keys(dry.tick()) == keys(would)
    assert dry.health().evicted_groups == 0
    assert len(index) == 20
    did = wet.tick()
    assert keys(did)[:2] == pages(4, 15)
    assert keys(would) == keys(did)
    assert [group.disk_bytes for group in would.evicted] == [group.disk_bytes for group in did.evicted]


def test_torn_groups_go_first_once_they_are_old(watch: Watch, bases: list[Path]) -> None:
    for page in range(20):
        paths = write_page(bases, page, mtime=time.time() if page == 19 else None)
        if page in (10, 19):
            paths[1].unlink()
    index = watch(*bases)
    assert [group.key for group in index.torn()] == pages(10, 19)
    assert not list(index.torn(ranks=[0])), "the other rank is another host's"
    assert keys(full(index, torn_after=3600, ranks=[0], dry_run=True).tick())[0] == page_key(0)
    # 38 shards: 11.4 have to go, the 1 of the torn group and those of 6 others. 19 may still be under way.
    assert keys(full(index, torn_after=3600).tick()) == pages(10, *range(6))


def test_torn_groups_stay_where_there_is_room(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)[0].unlink()
    index = watch(*bases)
    assert not Cleaner(index, 80, 70, capacity="1TiB", torn_after=1).tick()
    assert len(index) == 1


# --- the thread ---


def test_starts_and_stops(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    cleaner = Cleaner(index, interval=0.01)
    assert not cleaner.health().running
    cleaner.stop()
    for _ in range(2):
        cleaner.start()
        cleaner.start()
        assert [thread.name for thread in threading.enumerate()].count("nixl-index-cleaner") == 1
        ticks = cleaner.health().ticks
        eventually(lambda: cleaner.health().ticks > ticks + 1, "it ticks")  # noqa: B023
        assert cleaner.health().running
        cleaner.stop()
        cleaner.stop()
        assert not cleaner.health().running
    with cleaner as entered:
        assert entered is cleaner
    ticks = cleaner.health().ticks
    cleaner.tick()
    assert cleaner.health().ticks == ticks + 1


def test_ends_with_its_index(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    with Cleaner(index, interval=0.01) as cleaner:
        eventually(lambda: cleaner.health().ticks, "it ticks")
        index.close()
        eventually(lambda: not cleaner.health().running, "it knows that it has ended")


def test_a_tick_that_fails_is_said(watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scout that does not answer: health says so until a tick is whole again."""
    monkeypatch.setattr("nixl_index.emitter.STALL_SECONDS", 600)
    monkeypatch.setattr("nixl_index.cleaner._ANSWER_SECONDS", 0.05)
    index = watch(*bases)
    with Cleaner(index, interval=0.01) as cleaner:
        with held(index):
            eventually(lambda: "no answer" in cleaner.health().last_error, "it is said")
        eventually(lambda: not cleaner.health().last_error, "it is over")


def test_ticks_early_when_the_index_has_grown(watch: Watch, bases: list[Path]) -> None:
    """By half of the room that was left: long before the next tick is due."""
    write_page(bases[:1], 0)
    index = watch(bases[0])
    each = index.nbytes
    with Cleaner(index, 80, 70, capacity=20 * each, interval=3600) as cleaner:
        eventually(lambda: cleaner.health().ticks, "the first tick")
        for page in range(1, 100):
            write_page(bases[:1], page)
            index.sync(DEADLINE)
        eventually(lambda: index.nbytes <= 16 * each, "it keeps up")
        assert page_key(99) in index


def test_early_ticks_keep_it_below_high(watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below where the last tick found it: else each tick comes later than the one before."""
    write_page(bases, 0)
    index = watch(*bases)
    size = 50 * index.nbytes
    cleaner = Cleaner(index, 80, 70, interval=3600)
    monkeypatch.setattr(cleaner, "measure", lambda problems: [Volume(frozenset({0, 1}), size, size - index.nbytes)])
    for page in range(40):
        write_page(bases, page)
    index.sync(DEADLINE)
    with cleaner:
        eventually(lambda: cleaner.health().evicted_groups == 5, "a hot tick, from 80 percent to 70")
        index.sync(DEADLINE)
        page = 40
        while index.nbytes < 0.8 * size:
            write_page(bases, page)
            index.sync(DEADLINE)
            page += 1
        eventually(lambda: cleaner.health().ticks > 1, "an early tick, when half of the room was gone")


# --- hooks ---


def test_what_comes_during_a_tick_is_not_left_for_the_next_one(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick decides by what it measured. That the disk is hot again when it ends is no reason to wait for 30 s."""
    for page in range(10):
        write_page(bases, page, data=bytes(4096))
    index = watch(*bases)
    cleaner = full(index)
    evict, wrote = cleaner._evict, threading.Event()

    def evict_while_others_write(volumes: list[Volume], problems: list[str]) -> Eviction:
        eviction = evict(volumes, problems)
        if not wrote.is_set():
            for page in range(10, 15):
                write_page(bases, page, data=bytes(4096))
            index.sync(DEADLINE)
            wrote.set()
        return eviction

    monkeypatch.setattr(cleaner, "_evict", evict_while_others_write)
    with cleaner:
        assert wrote.wait(DEADLINE)
        eventually(lambda: len(index) == 7, "it is at the low watermark again")
    assert cleaner.health().ticks == 2


def test_what_was_rewritten_in_its_turn_is_tried_again_soon(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """Each group is left alone, for good reason, and the disk is as full as before: no reason to wait for 30 s."""
    files = [path for page in range(10) for path in write_page(bases, page, data=bytes(4096))]
    index = watch(*bases)
    for number, path in enumerate(files):
        (tmp_path / str(number)).hardlink_to(path)
        os.utime(tmp_path / str(number))  # by another name, so that no event tells
    with full(index) as cleaner:
        eventually(lambda: len(index) == 7, "it is at the low watermark")
        eventually(lambda: cleaner.health().ticks > 1, "the first tick could not do that")


def test_on_evict_is_called_in_order_and_stops_nothing(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow, and raising: off the thread that evicts, and without the lock."""
    for page in range(20):
        write_page(bases, page)
    index = watch(*bases)
    called: list[EvictedGroup] = []
    go_on = threading.Event()

    def on_evict(group: EvictedGroup) -> None:
        assert go_on.wait(DEADLINE)
        index.touch([group.key])  # which takes the lock
        called.append(group)
        raise RuntimeError("the callback's own")

    cleaner = full(index, on_evict=on_evict)
    eviction = cleaner.tick()
    assert keys(eviction) == pages(*range(6))
    assert not called
    go_on.set()
    cleaner.stop()
    assert tuple(called) == eviction.evicted
    assert caplog.text.count("on_evict failed for group") == 1
    monkeypatch.setattr("nixl_index.logs.SECONDS", 0.0)
    index._follower.log.flush()
    assert f"on_evict failed for group {page_key(5)!r}" in caplog.messages[-1]
    assert "held_back=4" in caplog.messages[-1]
