"""FAILURES 17-20: a base, or a bucket, that goes out of sight, and comes back. Nothing of it is taken for deleted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from nixl_index import Evictor, FrozenError, GroupIndex
from nixl_index.link import Isolation
from tests.mounts import Mounts
from tests.support import DEADLINE, audit, eventually, in_index, on_disk, write

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as made:
        yield made


def populate(disk: Path, other: Path) -> None:
    """A group wholly on `disk`, one on both, one wholly on `other`, in the order of their age."""
    write(disk / "00" / "a_m_0_2", b"x", 1_000)
    write(disk / "ab" / "a_m_1_2", b"x", 1_000)
    write(disk / "ab" / "b_m_0_2", b"x", 2_000)
    write(other / "00" / "b_m_1_2", b"x", 2_000)
    write(other / "ab" / "c_m", b"x", 3_000)


def assert_frozen(index: GroupIndex, disk: Path, other: Path, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """`disk` is frozen and says so; all of it is kept, none of it is given away; `other` goes on as ever."""
    eventually(lambda: str(disk) in index.health().frozen, "the base freezes")
    assert index.health().state == "frozen"
    assert re.search(reason, index.health().frozen[str(disk)])
    assert re.search(f"{re.escape(repr(str(disk)))} is frozen.*{reason}", caplog.text)
    with pytest.raises(FrozenError, match=re.escape(repr(str(disk)))):
        index.sync(DEADLINE)
    assert "a_m" in index
    assert len(index["a_m"]) == 2
    popped = index.pop_oldest()
    assert popped is not None
    assert popped.paths == (str(other / "00" / "b_m_1_2"),)
    index.restore(popped)
    for key in ("d_m", "e_m"):
        write(other / "00" / key, b"x", 4_000)
    with pytest.raises(FrozenError):
        index.sync(DEADLINE)
    assert index.shards == 7
    assert [group.key for group in index] == ["b_m", "c_m", "d_m", "e_m"]
    eviction = Evictor(index).evict_oldest(3)
    assert [(group.key, group.shards) for group in eviction.evicted] == [("b_m", 1), ("c_m", 1), ("d_m", 1)]
    index.rescan(timeout=DEADLINE)  # of what is live: it does not take over what was not named
    with pytest.raises(FrozenError):
        index.sync(DEADLINE)
    assert index.shards == 4
    assert index["b_m"].paths == (str(disk / "ab" / "b_m_0_2"),)
    assert list(on_disk([other])) == [str(other / "00" / "e_m")]


def assert_back(index: GroupIndex, disk: Path, other: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`disk` is live again, by a reconcile; what is on it is what is known, and can be evicted."""
    before = index.health().reconciles
    eventually(lambda: not index.health().frozen, "the base is live again")
    index.sync(DEADLINE)
    assert index.health().state == "live"
    assert index.health().reconciles >= max(before, 1)
    assert f"base dir {str(disk)!r} came back" in caplog.text
    audit(index, [disk, other])


def assert_whole(index: GroupIndex, disk: Path, other: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`disk` is back with what was on it when `assert_frozen` had looked, and a file that came out of sight."""
    assert_back(index, disk, other, caplog)
    assert [group.key for group in index] == ["a_m", "b_m", "f_m", "e_m"]
    assert len(index["a_m"]) == 2
    evicted = Evictor(index).evict_oldest(9).evicted
    assert [(group.key, group.shards) for group in evicted] == [("a_m", 2), ("b_m", 1), ("f_m", 1), ("e_m", 1)]
    assert not on_disk([disk, other])


@contextmanager
def unmounted(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """And the same device mounted again, after something happened to it elsewhere."""
    mounts.unmount(disk)
    yield
    write(mounts.mount(device, disk.parent / "elsewhere") / "00" / "f_m", b"x", 3_500)
    mounts.unmount(disk.parent / "elsewhere")
    mounts.mount(device, disk)


@contextmanager
def unmounted_lazily(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """While a file is open: the mount lives on, unseen, and no event tells."""
    with open(disk / "00" / "a_m_0_2", "rb"):
        mounts.unmount(disk, lazy=True)
        yield
    mounts.mount(device, disk)
    write(disk / "00" / "f_m", b"x", 3_500)


@contextmanager
def bound_elsewhere(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """The watches live on, and tell of what happens at the other path."""
    elsewhere = mounts.bind(disk, disk.parent / "elsewhere")
    mounts.unmount(disk)
    yield
    write(elsewhere / "00" / "f_m", b"x", 3_500)
    (elsewhere / "00" / "a_m_0_2").rename(elsewhere / "ab" / "a_m_0_2")
    mounts.bind(elsewhere, disk)


@contextmanager
def mounted_over(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """By an empty file system, later one with the same names and mtimes."""
    mounts.mount("tmpfs", disk)
    shutil.copytree(disk.parent / "copy", disk, dirs_exist_ok=True)
    yield
    assert len(on_disk([disk])) == 3
    mounts.unmount(disk)
    write(disk / "00" / "f_m", b"x", 3_500)


@contextmanager
def parent_renamed(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """No event tells: the directory that moved is not watched."""
    moved = disk.parent.with_name("moved")
    disk.parent.rename(moved)
    yield
    write(moved / disk.name / "00" / "f_m", b"x", 3_500)
    moved.rename(disk.parent)


@contextmanager
def renamed(mounts: Mounts, disk: Path, device: str) -> Iterator[None]:
    """Nothing takes its place, then a symlink that leads to it, which is not followed."""
    disk.rename(disk.with_name("moved"))
    yield
    disk.symlink_to(disk.with_name("moved"))
    write(disk / "00" / "f_m", b"x", 3_500)
    disk.unlink()
    disk.with_name("moved").rename(disk)


Form = Callable[[Mounts, Path, str], AbstractContextManager[None]]
ANOTHER = "another file system is there"
NONE = "out of sight: no directory is there"
MOVED = "not provably in the directories that were indexed"


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        pytest.param(unmounted, ANOTHER, id="f19-unmounted-and-mounted-again"),
        pytest.param(unmounted_lazily, ANOTHER, id="f19-unmounted-lazily-with-an-open-file"),
        pytest.param(bound_elsewhere, ANOTHER, id="f19-unmounted-with-a-bind-elsewhere"),
        pytest.param(mounted_over, ANOTHER, id="f20-mounted-over"),
        pytest.param(parent_renamed, NONE, id="f18-parent-renamed"),
        pytest.param(renamed, NONE, id="f18-renamed-and-back"),
    ],
)
def test_out_of_sight_and_back(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture, form: Form, reason: str
) -> None:
    other, disk = tmp_path / "other", tmp_path / "parent" / "disk"
    device = "" if form is renamed else mounts.device("disk")  # a mount point cannot be renamed
    disk.mkdir(parents=True)
    if device:
        mounts.mount(device, disk)
    populate(disk, other)
    shutil.copytree(disk, disk.parent / "copy", ignore=shutil.ignore_patterns("lost+found"))
    index = watch(disk, other)
    known = in_index(index)
    with form(mounts, disk, device):
        assert_frozen(index, disk, other, reason, caplog)
        assert index["a_m"].mtime_ns == known[str(disk / "00" / "a_m_0_2")][0]
    assert_whole(index, disk, other, caplog)


def test_f19_another_device_stays_frozen_until_rescan(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A look is not enough: somebody has to say that this is the base now."""
    other, disk = tmp_path / "other", mounts.mount(mounts.device("first"), tmp_path / "disk")
    populate(disk, other)
    index = watch(disk, other)
    mounts.unmount(disk)
    write(mounts.mount(mounts.device("second"), disk) / "00" / "g_m", b"x", 5_000)
    assert_frozen(index, disk, other, ANOTHER, caplog)
    assert f"rescan({str(disk)!r})" in index.health().frozen[str(disk)]  # it says what to do
    assert (disk / "00" / "g_m").exists()
    with pytest.raises(FrozenError):
        index.audit(DEADLINE)
    index.rescan(disk, DEADLINE)
    assert_back(index, disk, other, caplog)
    assert [group.key for group in index] == ["e_m", "g_m"]
    write(disk / "cd" / "h_m")
    index.sync(DEADLINE)
    assert "h_m" in index


@pytest.mark.parametrize("kind", ["plain", "tmpfs"])
def test_f17_base_removed_and_recreated(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Adopted by a reconcile, whether or not anyone looked in between (an inode number may be that of the old one)."""
    parent = mounts.mount("tmpfs", tmp_path / "tmpfs") if kind == "tmpfs" else tmp_path
    other, disk = tmp_path / "other", parent / "disk"
    populate(disk, other)
    index = watch(disk, other)
    shutil.rmtree(disk)
    eventually(lambda: index.health().frozen, "the base freezes")
    with pytest.raises(FrozenError, match=re.escape(str(disk))):
        index.sync(DEADLINE)
    write(disk / "ab" / "b_m_0_2", b"x", 2_500)
    assert_back(index, disk, other, caplog)
    assert [group.key for group in index] == ["b_m", "c_m"]
    for n in range(5):  # at once
        shutil.rmtree(disk)
        write(disk / "ab" / f"new{n}_m", b"x", 5_000 + n)
        write(disk / "cd" / f"new{n}_m_1_2", b"x", 5_000 + n)
    eventually(lambda: "new4_m" in index, "the new base is followed")
    assert_back(index, disk, other, caplog)
    assert [group.key for group in index] == ["b_m", "c_m", "new4_m"]
    assert len(Evictor(index).evict_oldest(3).evicted) == 3
    assert not on_disk([disk, other])


def test_f18_base_renamed_and_another_put_in_its_place(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other, disk, moved = tmp_path / "other", tmp_path / "disk", tmp_path / "moved"
    populate(disk, other)
    write(tmp_path / "new" / "00" / "g_m", b"x", 500)
    index = watch(disk, other)
    disk.rename(moved)
    (tmp_path / "new").rename(disk)
    eventually(lambda: "g_m" in index, "the new base is followed")
    assert_back(index, disk, other, caplog)
    assert [group.key for group in index] == ["g_m", "b_m", "c_m"]
    assert len(Evictor(index).evict_oldest(9).evicted) == 3
    assert len(on_disk([moved])) == 3


@pytest.mark.parametrize("finder", ["eviction", "rescan", "sight"])
def test_f20_a_bucket_mounted_over(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture, finder: str
) -> None:
    """The base itself is as it was; what is below the bucket's path has the same names and mtimes."""
    other, disk = tmp_path / "other", tmp_path / "disk"
    populate(disk, other)
    shutil.copytree(disk / "ab", tmp_path / "copy")
    index = watch(disk, other)
    mounts.mount("tmpfs", disk / "ab")
    shutil.copytree(tmp_path / "copy", disk / "ab", dirs_exist_ok=True)
    if finder == "eviction":
        eviction = Evictor(index).evict_oldest(1)
        # Not taken at all, where the mount was seen before; else found out by the look before the unlink.
        assert [(group.key, group.reason) for group in eviction.skipped] in ([], [("a_m", MOVED)])
        assert [group.key for group in eviction.evicted] == ["b_m"]
        write(other / "00" / "b_m_1_2", b"x", 2_000)
    elif finder == "rescan":
        index.rescan(timeout=DEADLINE)
    assert_frozen(index, disk, other, f"another file system is mounted at '{disk}/ab'", caplog)
    assert len(on_disk([disk])) == 3
    mounts.unmount(disk / "ab")
    write(disk / "00" / "f_m", b"x", 3_500)
    assert_whole(index, disk, other, caplog)


def test_f20_another_directory_of_the_same_file_system_bound_over_it(
    mounts: Mounts, watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not to be told from one that was put in its place: adopted, and again when the old one is back."""
    other, disk = tmp_path / "other", tmp_path / "disk"
    populate(disk, other)
    write(tmp_path / "new" / "00" / "g_m", b"x", 500)
    index = watch(disk, other)
    mounts.bind(tmp_path / "new", disk)
    eventually(lambda: "g_m" in index, "what is there now is followed")
    assert_back(index, disk, other, caplog)
    assert [group.key for group in Evictor(index).evict_oldest(1).evicted] == ["g_m"]
    mounts.unmount(disk)
    eventually(lambda: "a_m" in index, "what is there again is followed")
    assert_back(index, disk, other, caplog)
    assert index.shards == 5


@pytest.mark.parametrize("by_hand", [False, True])
def test_remounted_read_only(
    mounts: Mounts,
    watch: Watch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    isolation: Isolation,
    by_hand: bool,
) -> None:
    """FAILURES 31 too: an eviction is tried, the base freezes; it resumes by itself, or when it is told to."""
    other, disk = tmp_path / "other", mounts.mount(mounts.device("disk"), tmp_path / "disk")
    populate(disk, other)
    index = watch(disk, other)
    mounts.remount(disk, "ro")
    write(other / "00" / "z_m", b"x", 100)
    index.sync(DEADLINE)
    eviction = Evictor(index).evict_oldest(2)
    assert [group.key for group in eviction.evicted][:1] == ["z_m"]
    assert "a_m" in [group.key for group in eviction.skipped]
    write(other / "00" / "b_m_1_2", b"x", 2_000)
    write(other / "ab" / "c_m", b"x", 3_000)
    assert_frozen(index, disk, other, "Read-only file system", caplog)
    mounts.remount(disk, "rw")
    write(disk / "00" / "f_m", b"x", 3_500)
    if by_hand:
        index.rescan(disk, DEADLINE)
    assert_whole(index, disk, other, caplog)
