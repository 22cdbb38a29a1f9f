"""FAILURES 30-37: what an unlink meets. One file, one disk or one process that fails never stops the rest."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nixl_index import Cleaner, Eviction, Evictor, FrozenError, GroupIndex, disk
from nixl_index.watermarks import Volume
from tests.mounts import Mounts, immutable
from tests.provoke import held
from tests.support import DEADLINE, audit, eventually, on_disk, page_key, write, write_page

Watch = Callable[..., GroupIndex]

_SHUT_DOWN = 0x8004587D
"""FS_IOC_SHUTDOWN: the file system behaves as if its device were gone."""


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as made:
        yield made


def shut_down(mount: Path) -> None:
    """From now on every write of this file system fails: EIO."""
    root = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(root, _SHUT_DOWN, struct.pack("I", 0))
    except OSError as error:
        pytest.skip(f"this kernel shuts no file system down: {error}")
    finally:
        os.close(root)


def keys(eviction: Eviction) -> list[str]:
    return [group.key for group in eviction.evicted]


def reasons(eviction: Eviction) -> dict[str, str]:
    return {group.key: group.reason for group in (*eviction.failed, *eviction.skipped)}


def test_f30_a_file_that_cannot_be_removed(watch: Watch, bases: list[Path]) -> None:
    """EPERM. Its group goes in part and into quarantine; the rest goes on; when the file changes, it has its turn."""
    pages = [write_page(bases, page) for page in range(5)]
    index = watch(*bases)
    with immutable(pages[0][0]):
        eviction = Evictor(index).evict_oldest(2)
        assert keys(eviction) == [page_key(1), page_key(2)]
        assert reasons(eviction) == {page_key(0): "Operation not permitted"}
        assert eviction.disk_bytes > sum(group.disk_bytes for group in eviction.evicted), "of the failed one too"
        assert [path.exists() for path in pages[0]] == [True, False]
        index.sync(DEADLINE)
        assert index[page_key(0)].paths == (str(pages[0][0]),)
        assert index.health().quarantined == 1
        oldest = index.oldest()
        assert oldest is not None
        assert oldest.key == page_key(3)
        assert keys(Evictor(index).evict_oldest(1)) == [page_key(3)]
    index.sync(DEADLINE)
    assert index.health().quarantined == 0
    assert keys(Evictor(index).evict_oldest(2)) == [page_key(4), page_key(0)]


def test_f30_a_quarantined_group_that_is_removed_by_hand(watch: Watch, bases: list[Path]) -> None:
    """What is gone is in quarantine no more: an operator who cleaned up sees that in health."""
    paths = write_page(bases, 0)
    index = watch(*bases)
    with immutable(*paths):
        assert reasons(Evictor(index).evict_oldest()) == {page_key(0): "Operation not permitted"}
        index.sync(DEADLINE)
        assert index.health().quarantined == 1
        subprocess.run(["chattr", "-i", *paths], check=True)
        for path in paths:
            path.rename(bases[0] / path.name)
        index.sync(DEADLINE)
        assert page_key(0) not in index
        assert index.health().quarantined == 0
        for path in paths:
            (bases[0] / path.name).rename(path)


def test_f30_a_mount_on_a_file(bases: list[Path], mounts: Mounts, watch: Watch) -> None:
    """EBUSY."""
    pages = [write_page(bases, page) for page in range(3)]
    busy = pages[0][1]
    subprocess.run(["mount", "--bind", busy, busy], check=True)
    index = watch(*bases)
    eviction = Evictor(index).evict_oldest(2)
    assert keys(eviction) == [page_key(1), page_key(2)]
    assert reasons(eviction) == {page_key(0): "Device or resource busy"}
    assert busy.exists()
    assert index.health().quarantined == 1
    mounts.unmount(busy)
    os.utime(busy)
    index.sync(DEADLINE)
    assert index.health().quarantined == 0
    assert keys(Evictor(index).evict_oldest()) == [page_key(0)]


def test_f30_failures_do_not_cost_more_groups_than_asked_for(watch: Watch, bases: list[Path]) -> None:
    """Each group has one file that stays. What is unlinked of it all the same counts: else to free two groups' bytes
    would tear every group of the cache."""
    pages = [write_page(bases, page, ranks=4, data=b"x" * 8192) for page in range(100)]
    index = watch(*bases)
    each = index[page_key(0)].disk_bytes
    with immutable(*(paths[0] for paths in pages)):
        eviction = Evictor(index).evict_bytes(2 * each)
        assert eviction.disk_bytes <= 3 * each
        assert sum(not all(path.exists() for path in paths) for paths in pages) <= 4


def test_f30_after_many_failures_the_index_is_the_disk(watch: Watch, bases: list[Path]) -> None:
    """In steps: the events of the first unlinks are told before the answer, which puts back what was not evicted."""
    pages = [write_page(bases, page, ranks=60) for page in range(64)]
    index = watch(*bases)
    with immutable(*(paths[0] for paths in pages)):
        assert len(reasons(Evictor(index).evict_oldest(64))) == 64
        index.sync(DEADLINE)
        assert index.shards == len(on_disk(bases)) == 64


def _frozen(index: GroupIndex, base: Path, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    eventually(lambda: str(base) in index.health().frozen, "the base freezes")
    assert re.search(reason, index.health().frozen[str(base)])
    assert index.health().state == "frozen"
    assert re.search(f"{re.escape(repr(str(base)))} is frozen.*{reason}", caplog.text)
    with pytest.raises(FrozenError, match=reason):
        index.sync(DEADLINE)


def test_f31_a_read_only_disk(
    bases: list[Path], mounts: Mounts, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """EROFS: the base freezes and says so, the other goes on, and a rescan takes the base over again."""
    mounts.mount("tmpfs", bases[0])
    pages = [write_page(bases, page, ranks=8) for page in range(4)]
    index = watch(*bases)
    mounts.remount(bases[0], "ro")
    Evictor(index).evict_oldest()
    _frozen(index, bases[0], "Read-only file system", caplog)
    Evictor(index).evict_oldest(2)
    for paths in pages:
        assert all(path.exists() for path in paths if bases[0] in path.parents)
    assert all(path.exists() for path in pages[3])
    mounts.remount(bases[0], "rw")
    index.rescan(bases[0], DEADLINE)
    audit(index, bases)
    assert keys(Evictor(index).evict_oldest(10)) == [page_key(page) for page in range(4)]
    assert not on_disk(bases)


def test_f31_a_read_only_disk_comes_back_by_itself(
    bases: list[Path], mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it can be written to. (In a thread: the time-out cannot be shortened in another process.)"""
    monkeypatch.setattr(disk, "FAULT_SECONDS", 0.1)
    mounts.mount("tmpfs", bases[0])
    path = write(bases[0] / "00" / "a_m")
    with GroupIndex.watch(bases[0], isolation="thread") as index:
        mounts.remount(bases[0], "ro")
        assert not Evictor(index).evict_oldest()
        # Any number of further looks does not thaw it: each rescan of all makes one, once the time-out is over.
        for _ in range(20):
            index.rescan(timeout=DEADLINE)
            assert index.health().frozen
        mounts.remount(bases[0], "rw")
        eventually(lambda: not index.health().frozen, "the base is back")
        index.sync(DEADLINE)
        assert keys(Evictor(index).evict_oldest()) == ["a_m"]
    assert not path.exists()


def test_f31_a_disk_that_fails_in_a_tick_does_not_cost_the_others(
    bases: list[Path], mounts: Mounts, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group has shards on both disks, and only the first is to give room. Where it cannot, since it fails once
    the tick is under way, the second must not lose its part of every group for it."""
    mounts.mount(mounts.device("failing"), bases[0])
    for page in range(200):
        write_page(bases, page, ranks=6)
    index = watch(*bases)
    before = len(on_disk([bases[1]]))
    cleaner = Cleaner(index, 80, 70)
    volume, lock = Volume(frozenset({0}), 100 * 4096, 10 * 4096), cleaner._lock

    def lock_and_fail(problems: list[str]) -> frozenset[int]:
        refused = lock(problems)
        shut_down(bases[0])
        return refused

    monkeypatch.setattr(cleaner, "measure", lambda problems: [volume])
    monkeypatch.setattr(cleaner, "_lock", lock_and_fail)
    cleaner.tick()
    assert index.health().frozen
    assert before - len(on_disk([bases[1]])) <= 64 * 6, "no more than the batch that was under way"


def test_f32_a_disk_with_input_output_errors(
    bases: list[Path], mounts: Mounts, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """EIO, of a real ext4 that was shut down as if its device had gone."""
    device = mounts.device("failing")
    mounts.mount(device, bases[0])
    pages = [write_page(bases, page, ranks=8) for page in range(4)]
    os.sync()
    index = watch(*bases)
    shut_down(bases[0])
    Evictor(index).evict_oldest()
    _frozen(index, bases[0], "Input/output error", caplog)
    write(bases[1] / "00" / "z_m", b"x", 5)
    with pytest.raises(FrozenError):
        index.sync(DEADLINE)
    assert "z_m" in keys(Evictor(index).evict_oldest(3))
    mounts.unmount(bases[0])
    mounts.mount(device, bases[0])
    index.rescan(bases[0], DEADLINE)
    audit(index, bases)
    assert all(path.exists() for paths in pages for path in paths if bases[0] in path.parents)
    Evictor(index).evict_oldest(10)
    assert not on_disk(bases)


@contextmanager
def under_way(index: GroupIndex, key: str) -> Iterator[list[Eviction]]:
    """The oldest group is popped, and its eviction sent; the scout comes to it when the block ends. Then the list holds
    what came of it."""
    results: list[Eviction] = []
    thread = threading.Thread(target=lambda: results.append(Evictor(index).evict_oldest(timeout=DEADLINE)))
    try:
        with held(index):
            thread.start()
            eventually(lambda: key in index._follower.writer.in_flight, "the eviction is under way")
            yield results
    finally:
        thread.join()


def test_f33_a_rewrite_between_pop_and_unlink(watch: Watch, bases: list[Path]) -> None:
    """Hot again while it waits for its deletion: left alone, whole, and the next has its turn."""
    old, young = write_page(bases, 0), write_page(bases, 1)
    index = watch(*bases)
    with under_way(index, page_key(0)) as results:
        old[1].write_bytes(b"anew")
    assert keys(results[0]) == [page_key(1)]
    assert reasons(results[0]) == {page_key(0): "rewritten since it was indexed"}
    assert all(path.exists() for path in old)
    assert not any(path.exists() for path in young)
    index.sync(DEADLINE)
    assert index[page_key(0)].mtime_ns == old[1].stat().st_mtime_ns
    assert index.health().quarantined == 0


def test_f34_a_late_shard(watch: Watch, bases: list[Path]) -> None:
    """It is not unlinked: what was not indexed was not verified. It forms the group anew."""
    paths = write_page(bases, 0)
    index = watch(*bases)
    with under_way(index, page_key(0)) as results:
        late = write(bases[0] / "77" / f"{page_key(0)}_1_2_swa_k")
        with index.pin([page_key(0), page_key(1)]) as pin:
            assert pin.keys == {page_key(1)}, "an eviction that is under way cannot be pinned"
    assert keys(results[0]) == [page_key(0)]
    assert late.exists()
    assert not any(path.exists() for path in paths)
    index.sync(DEADLINE)
    assert index[page_key(0)].paths == (str(late),)
    assert keys(Evictor(index).evict_oldest()) == [page_key(0)]


def test_f35_a_partial_group_at_the_start(watch: Watch, bases: list[Path]) -> None:
    """One rank of two: a group like any other, and known as torn."""
    paths = write_page(bases, 0)
    write_page(bases, 1)
    paths[1].unlink()
    index = watch(*bases)
    assert [group.key for group in index.torn()] == [page_key(0)]
    (gone,) = Evictor(index).evict_oldest().evicted
    assert (gone.key, gone.shards) == (page_key(0), 1)
    assert not list(index.torn())
