"""FAILURES 4-8: events that come twice, too late, or never. The index is the disk all the same."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, records
from nixl_index.watches import Watches
from tests.mounts import Mounts
from tests.provoke import held, reader_stands_still, settle_at_once
from tests.support import DEADLINE, audit, eventually, page_key, write, write_page

Watch = Callable[..., GroupIndex]


# --- 4: the same event twice ---


def test_f04_equal_pieces_of_the_stream_are_all_handled(watch: Watch, bases: list[Path]) -> None:
    """watchdog's queue drops an event that equals the last one in it: then these bytes would wait for ever."""
    path = write(bases[0] / "00" / "a_m", b"x", 5)
    index = watch(*bases)
    with reader_stands_still(index):
        for _ in range(6):
            before = index.health().queued_bytes
            os.utime(path, (5, 5))
            eventually(lambda before=before: index.health().queued_bytes > before, "it was told of")
    audit(index, bases)
    eventually(lambda: index.health().queued_bytes == 0, "everything was handled")


def test_f04_equal_events_count_once(watch: Watch, bases: list[Path]) -> None:
    paths = [write(bases[0] / "00" / f"{name}_m", b"x" * 5_000, 5) for name in "ab"]
    index = watch(*bases)
    with held(index):
        for _ in range(200):
            for path in paths:
                path.unlink()
                write(path, b"x" * 5_000, 5)
    audit(index, bases)
    assert (len(index), index.shards, index.health().losses) == (2, 2, 0)


# --- 5: a DELETE that is no longer true ---


@contextmanager
def never_gone(index: GroupIndex) -> Iterator[None]:
    """The scout does not tell of any shard that it is gone meanwhile."""
    handlers = index._follower._handlers
    original, told = handlers[records.Gone], list[records.Gone]()
    handlers[records.Gone] = lambda gone: told.append(gone) or original(gone)
    try:
        yield
    finally:
        handlers[records.Gone] = original
    assert not told


def replace_silently(path: Path, scratch: Path) -> None:
    """Another file of this name. All that is told of it is that the old one was deleted: a link makes no event."""
    write(scratch / "replacement", b"new", 77)
    path.unlink()
    os.link(scratch / "replacement", path)


def test_f05_a_stale_delete_after_a_rescan(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    first, second = write_page(bases, 0)
    index = watch(*bases)
    with never_gone(index):
        with held(index):
            replace_silently(first, tmp_path)
            rescan = index._follower.asks.ask(lambda number: records.Scan(number, -1))
        assert rescan.answered.wait(DEADLINE)
        index.sync(DEADLINE)
        assert sorted(index[page_key(0)].paths) == sorted(map(str, (first, second)))
    audit(index, bases)


def test_f05_a_delete_that_is_read_after_the_rescan(
    bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with the event kept in the queue until everything was listed: in a thread."""
    path, _ = write_page(bases, 0)
    with GroupIndex.watch(*bases, isolation="thread") as index, never_gone(index):
        read = Watches.read
        monkeypatch.setattr(Watches, "read", lambda watches: iter(()))
        replace_silently(path, tmp_path)
        index.rescan(timeout=DEADLINE)
        assert index[page_key(0)].recency_ns == 1_700_000_000 * 10**9
        assert {shard.path: shard.mtime_ns for shard in index[page_key(0)].shards}[str(path)] == 77 * 10**9
        monkeypatch.setattr(Watches, "read", read)
        audit(index, bases)


# --- 6 to 8: changes that no event tells of ---


def test_f06_written_behind_an_overlay(watch: Watch, tmp_path: Path) -> None:
    """Its upper directory is written to directly; the scrub finds it."""
    with Mounts(tmp_path) as mounts:
        ram = mounts.mount("tmpfs", tmp_path / "ram")
        for name in ("lower", "upper", "work"):
            (ram / name).mkdir()
        merged = tmp_path / "merged"
        merged.mkdir()
        options = f"lowerdir={ram}/lower,upperdir={ram}/upper,workdir={ram}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)
        write(merged / "00" / "known_m", b"x", 5)
        write(merged / "01" / "silent_m", b"x", 6)
        index = watch(merged, rescan_interval=0.5)
        settle_at_once(index)
        write(merged / "00" / "told_m")
        index.sync(DEADLINE)
        assert "told_m" in index
        write(ram / "upper" / "00" / "behind_m", b"x", 7)
        os.utime(ram / "upper" / "01" / "silent_m", (8, 8))
        eventually(lambda: "behind_m" in index and index["silent_m"].mtime_ns == 8 * 10**9, "the scrub finds them")
        eventually(lambda: index.health().mended == 2, "both count as mended")
        assert (index.health().losses, index.health().state) == (0, "live")
        audit(index, [merged])
        index.close()


def test_f07_mmap_writes(watch: Watch, bases: list[Path]) -> None:
    """They make no event before the mapping goes, and are not evicted as what they were."""
    path = write(bases[0] / "00" / "a_m", b"x" * mmap.PAGESIZE, 5)
    write(bases[0] / "00" / "b_m", b"x", 6)
    index = watch(*bases)
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, mmap.PAGESIZE) as mapped:
        os.close(fd)
        mapped[:3] = b"new"
        mapped.flush()
        index.sync(DEADLINE)
        assert [group.key for group in Evictor(index).evict_oldest().evicted] == ["b_m"]
        assert path.read_bytes().startswith(b"new")
    index.sync(DEADLINE)
    assert index["a_m"].mtime_ns == path.stat().st_mtime_ns > 5 * 10**9


def test_f08_a_hard_link_into_a_bucket_is_found_by_a_reconcile(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    source = write(tmp_path / "source", b"x", 5)
    (bases[0] / "00").mkdir()
    index = watch(*bases, rescan_interval=None)
    settle_at_once(index)
    os.link(source, bases[0] / "00" / "a_m_0_2")
    index.rescan(timeout=DEADLINE)
    assert index["a_m"].mtime_ns == 5 * 10**9
    eventually(lambda: index.health().mended == 1, "it counts as mended")
    os.link(bases[0] / "00" / "a_m_0_2", bases[0] / "00" / "a_m_1_2")
    index.rescan(timeout=DEADLINE)
    assert len(index["a_m"]) == 2
    (bases[0] / "00" / "a_m_0_2").unlink()
    index.sync(DEADLINE)
    assert index["a_m"].paths == (str(bases[0] / "00" / "a_m_1_2"),)
