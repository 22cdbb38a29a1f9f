"""FAILURES 18 and 21-23: which directory is meant, by whatever path it is reached."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index import Eviction, Evictor, GroupIndex
from nixl_index.link import Isolation
from tests.mounts import Mounts
from tests.support import DEADLINE, eventually, on_disk, write

Watch = Callable[..., GroupIndex]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as made:
        yield made


def fill(directory: Path, count: int = 5, prefix: str = "") -> Path:
    """A populated directory."""
    for n in range(count):
        write(directory / f"{prefix}page{n}_m_0_2")
    return directory


def keys(index: GroupIndex) -> list[str]:
    return sorted(group.key for group in index)


def test_f18_identity_is_checked_before_any_unlink(process_watch: Watch, tmp_path: Path) -> None:
    """The other directory holds the same names with the same mtimes. The scout hears of the eviction before it can see
    that this is another directory."""
    disk, moved = tmp_path / "disk", tmp_path / "moved"
    for bucket, name in (("00", "a_m_0_2"), ("ab", "a_m_1_2"), ("ab", "b_m_0_2")):
        write(disk / bucket / name, b"x", 1_000)
    shutil.copytree(disk, tmp_path / "copy")
    index = process_watch(disk)
    result: list[Eviction] = []
    evicting = threading.Thread(target=lambda: result.append(Evictor(index).evict_oldest(9, DEADLINE)))
    pid = index.health().scout_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        disk.rename(moved)
        (tmp_path / "copy").rename(disk)
        evicting.start()
        eventually(lambda: index._follower.asks._waiting, "the command is under way")
    finally:
        os.kill(pid, signal.SIGCONT)
    evicting.join(DEADLINE)
    assert not result[0].evicted
    reason = "not provably in the directories that were indexed"
    assert {(group.key, group.reason) for group in result[0].skipped} == {("a_m", reason), ("b_m", reason)}
    assert len(on_disk([disk])) == len(on_disk([moved])) == 3
    eventually(lambda: not index.health().frozen, "the new base is adopted")
    index.sync(DEADLINE)
    assert len(Evictor(index).evict_oldest(9).evicted) == 2
    assert len(on_disk([moved])) == 3


def test_f21_symlinked_and_relative_bases(
    watch: Watch, bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is the directory that was meant when it was named: neither a chdir nor another target moves it."""
    link = tmp_path / "link"
    link.symlink_to(bases[1])
    monkeypatch.chdir(tmp_path)
    index = watch(Path("disk0"), link)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    fill(tmp_path / "sub" / "disk0" / "ab", prefix="wrong")
    link.unlink()
    link.symlink_to(tmp_path / "sub")
    fill(tmp_path / "sub" / "ab", prefix="wrong")
    write(bases[0] / "00" / "a_m")
    write(bases[1] / "00" / "b_m")
    index.sync(DEADLINE)
    assert keys(index) == ["a_m", "b_m"]
    assert index["b_m"].paths == (str(bases[1] / "00" / "b_m"),)
    with pytest.raises(ValueError, match="none of the base dirs"):
        index.rescan(tmp_path / "sub")
    index.rescan(bases[1], DEADLINE)
    assert len(Evictor(index).evict_oldest(9).evicted) == 2
    assert len(list(tmp_path.glob("sub/**/wrong*"))) == 10


def test_f22_a_symlink_as_bucket_is_not_followed(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """There at the start, made later, in the place of a bucket, and a bucket in its place."""
    precious = fill(tmp_path / "precious")
    (bases[0] / "aa").symlink_to(precious)
    fill(bases[0] / "bb", 3, "real")
    index = watch(*bases)
    assert len(index) == 3
    (bases[0] / "cc").symlink_to(precious)
    index.sync(DEADLINE)
    assert len(index) == 3
    (bases[0] / "bb").rename(tmp_path / "moved")
    (bases[0] / "bb").symlink_to(tmp_path / "moved")
    index.sync(DEADLINE)
    assert len(index) == 0
    write(tmp_path / "moved" / "late_m")
    write(precious / "late_m")
    index.sync(DEADLINE)
    assert len(index) == 0
    index.rescan(timeout=DEADLINE)
    assert len(index) == 0
    assert not Evictor(index).evict_oldest(10)
    assert len(list(precious.iterdir())) == 6
    assert len(list((tmp_path / "moved").iterdir())) == 4
    (bases[0] / "bb").unlink()
    (tmp_path / "moved").rename(bases[0] / "bb")
    index.sync(DEADLINE)
    assert len(index) == 4
    assert index.health().losses == 0


@pytest.mark.parametrize("kind", ["twice", "by symlink", "by dots", "inside", "around"])
def test_f23_bases_that_overlap_are_refused(isolation: Isolation, bases: list[Path], tmp_path: Path, kind: str) -> None:
    base = bases[0]
    (base / "sub").mkdir()
    (tmp_path / "link").symlink_to(base)
    pair, message = {
        "twice": ((base, base), "the same directory"),
        "by symlink": ((base, tmp_path / "link"), "the same directory"),
        "by dots": ((base, base / "sub" / ".."), "the same directory"),
        "inside": ((base, tmp_path / "link" / "sub"), "lies inside"),
        "around": ((base, tmp_path), "lies inside"),
    }[kind]
    with pytest.raises(ValueError, match=message):
        GroupIndex.watch(bases[1], *pair, isolation=isolation)


def test_f23_the_same_directory_by_a_bind_mount(
    mounts: Mounts, isolation: Isolation, tmp_path: Path, bases: list[Path]
) -> None:
    (bases[0] / "sub").mkdir()
    mounts.bind(bases[0], tmp_path / "bound")
    for pair, message in (
        ((bases[0], tmp_path / "bound"), "the same directory"),
        ((bases[0], tmp_path / "bound" / "sub"), "lies inside"),
        ((bases[0] / "sub", tmp_path / "bound"), "lies inside"),
    ):
        with pytest.raises(ValueError, match=message):
            GroupIndex.watch(*pair, isolation=isolation)


def test_f23_a_base_that_is_a_bind_mount_of_a_part_of_another(
    mounts: Mounts, isolation: Isolation, tmp_path: Path, bases: list[Path]
) -> None:
    """No path says so: every shard would be known twice."""
    write(bases[0] / "ab" / "00" / "a_m")
    bound = mounts.bind(bases[0] / "ab", tmp_path / "bound")
    with pytest.raises(ValueError, match="lies inside"):
        GroupIndex.watch(bases[0], bound, isolation=isolation).close()
