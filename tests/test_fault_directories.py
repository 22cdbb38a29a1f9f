"""FAILURES 14-16: directories that come, go, and change places. The index is always what the disk is."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, Layout
from tests.support import DEADLINE, audit, eventually, in_index, write

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]

TWO_LEVELS = "[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]"
TENANTS = "*/[0-9a-f][0-9a-f]"
_EXCHANGE = 2
_AT_FDCWD = -100


def exchange(one: Path, other: Path) -> None:
    """Have two paths change places, in one system call (Python has none for it)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


def fill(directory: Path, count: int = 5, mtime: int = 1_000, prefix: str = "") -> Path:
    """A populated directory. Other mtimes tell equal names apart."""
    for n in range(count):
        write(directory / f"{prefix}page{n}_m_0_2", b"x", mtime + n)
    return directory


def keys(index: GroupIndex) -> list[str]:
    return sorted(group.key for group in index)


def assert_quiet(index: GroupIndex) -> None:
    """Directories that come and go are no loss, and nothing is frozen for them."""
    health = index.health()
    assert (health.state, health.losses, health.frozen) == ("live", 0, {})


# --- 14: a burst in a new directory ---


@pytest.mark.parametrize(("pattern", "where"), [("[0-9a-f][0-9a-f]", "ab"), (TWO_LEVELS, "ab/cd"), (TENANTS, "t/cd")])
def test_f14_mkdir_and_5000_files_at_once(watch: Watch, bases: list[Path], pattern: str, where: str) -> None:
    """Made by another process, as fast as it can, so that most are there before the directory is watched, and some
    after, and rewritten at once, so that a name may be listed and told of by an event."""
    code = """if True:
        import os, sys
        os.makedirs(sys.argv[1])
        for n in range(5_000):
            path = f"{sys.argv[1]}/page{n}_m_0_2"
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            if n % 3 == 0:
                os.utime(path, (n, n))
            if n % 50 == 0:
                os.unlink(path)
    """
    index = watch(*bases, layout=Layout(pattern))
    subprocess.run([sys.executable, "-c", code, str(bases[0] / where)], check=True, timeout=DEADLINE)
    index.sync(DEADLINE)
    assert len(index) == 4_900
    audit(index, bases, pattern)
    assert index.health().losses == index.health().overflows == 0


def test_f14_many_buckets_at_once(watch: Watch, bases: list[Path]) -> None:
    """What the path mode of the writer does when it starts: all 256 buckets of a base, and files at once."""
    index = watch(*bases)
    for number in range(256):
        fill(bases[number % 2] / f"{number:02x}", 4, prefix=f"{number}x")
    index.sync(DEADLINE)
    assert len(index) == 1_024
    assert index.health().watched == 2 + 256
    assert_quiet(index)


# --- 15, 16: populated directories renamed in, out, among each other, exchanged, removed ---


def test_f15_a_populated_bucket_renamed_in(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    index = watch(*bases)
    fill(tmp_path / "made", 300).rename(bases[0] / "ab")
    index.sync(DEADLINE)
    assert len(index) == 300
    write(bases[0] / "ab" / "later_m")  # it is watched, too
    (bases[0] / "ab" / "page0_m_0_2").unlink()
    index.sync(DEADLINE)
    assert "later_m" in index
    assert "page0_m" not in index
    assert_quiet(index)


def test_f16_a_bucket_renamed_out_recreated_both_removed(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    bucket, away = fill(bases[0] / "ab", 20), tmp_path / "away"
    index = watch(*bases)
    bucket.rename(away)
    index.sync(DEADLINE)
    assert len(index) == 0
    fill(bucket, 3, mtime=2_000)
    write(away / "outside_m")  # its old watch, if it still has one, must not tell of this
    index.sync(DEADLINE)
    assert keys(index) == ["page0_m", "page1_m", "page2_m"]
    assert index["page0_m"].mtime_ns == 2_000 * 10**9
    shutil.rmtree(bucket)
    shutil.rmtree(away)
    index.sync(DEADLINE)
    assert len(index) == 0
    fill(bucket, 2)
    index.sync(DEADLINE)
    assert len(index) == 2
    assert_quiet(index)


def test_f16_a_bucket_that_goes_before_its_first_listing(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """Events tell of its files while a reconcile of much else is under way; then it is gone, with all of them."""
    for number in range(40):
        (bases[0] / f"{number:02x}").mkdir()
        for n in range(150):
            (bases[0] / f"{number:02x}" / f"{number}x{n}_m").touch()
    index = watch(*bases)
    for n in range(8):
        reconcile = threading.Thread(target=index.rescan, kwargs={"timeout": DEADLINE})
        reconcile.start()
        bucket = fill(bases[0] / f"f{n}", 1, prefix="new")
        eventually(lambda: "newpage0_m" in index, "the new bucket's file is known")
        bucket.rename(tmp_path / f"away{n}")
        index.sync(DEADLINE)
        reconcile.join(DEADLINE)
        assert "newpage0_m" not in index
    assert len(index) == 40 * 150


def test_f16_out_and_back_before_anyone_looks(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    bucket = fill(bases[0] / "ab", 20)
    index = watch(*bases)
    for n in range(20):
        bucket.rename(tmp_path / "away")
        (tmp_path / "away" / f"page{n}_m_0_2").unlink()
        write(tmp_path / "away" / f"new{n}_m")
        (tmp_path / "away").rename(bucket)
    index.sync(DEADLINE)
    assert keys(index) == sorted(f"new{n}_m" for n in range(20))
    assert_quiet(index)


def test_f16_buckets_renamed_among_each_other(watch: Watch, bases: list[Path]) -> None:
    """Round a ring of three, and between the bases: equal names, so only mtimes and paths tell them apart."""
    names = ["aa", "bb", "cc"]
    for n, name in enumerate(names):
        fill(bases[0] / name, mtime=10_000 * (n + 1))
    index = watch(*bases)
    for _ in range(5):
        (bases[0] / "cc").rename(bases[1] / "dd")
        (bases[0] / "bb").rename(bases[0] / "cc")
        (bases[0] / "aa").rename(bases[0] / "bb")
        (bases[1] / "dd").rename(bases[0] / "aa")
        audit(index, bases)
        assert index.shards == 15
        write(bases[0] / "aa" / "late_m")  # under its present path, whatever it was called when it was watched
        index.sync(DEADLINE)
        assert index["late_m"].paths == (str(bases[0] / "aa" / "late_m"),)
        (bases[0] / "aa" / "late_m").unlink()
    assert_quiet(index)


def test_f16_buckets_exchanged(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """With each other, with one of the other base, and with a directory that is no bucket."""
    one, two, three = fill(bases[0] / "aa"), fill(bases[0] / "bb", 3, 2_000), fill(bases[1] / "cc", 4, 3_000)
    outside = fill(tmp_path / "outside", 6, 4_000)
    index = watch(*bases)
    for left, right in ((one, two), (two, three), (one, outside), (three, outside), (one, three)):
        exchange(left, right)
        audit(index, bases)
        write(left / "after_m", b"x", 7)
        write(right / "after_m", b"x", 8)
        audit(index, bases)
    assert_quiet(index)


def test_f16_evicting_while_buckets_are_exchanged(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """A bucket is known by its identity: a file of the same name and mtime in a directory that was put in its place
    is no business of the index, before it is listed there."""
    inside = fill(bases[0] / "aa", 50)
    outside = fill(tmp_path / "outside", 50)
    index = watch(*bases)
    evictor = Evictor(index)
    for _ in range(10):
        exchange(inside, outside)
        evictor.evict_oldest(2)
        exchange(inside, outside)
        evictor.evict_oldest(2)
    audit(index, bases)
    kept = fill(tmp_path / "kept", 50)
    exchange(inside, kept)  # for good: from here on they are shards
    audit(index, bases)
    assert len(index) == 50


def test_f16_a_removed_bucket_and_a_file_in_its_place(
    watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    bucket = fill(bases[0] / "ab")
    fill(bases[0] / "cd", prefix="other")
    index = watch(*bases)
    with caplog.at_level(logging.WARNING):
        shutil.rmtree(bucket)
        bucket.write_bytes(b"a file, not a bucket")
        index.sync(DEADLINE)
        assert len(index) == 5
        assert index.health().watched == 3
        bucket.unlink()
        fill(bucket, 2)
        index.sync(DEADLINE)
        assert len(index) == 7
    assert_quiet(index)
    assert not caplog.records  # nothing to be said of what is ordinary


@pytest.mark.parametrize(("pattern", "prefixes"), [(TWO_LEVELS, ("", "")), (TENANTS, ("aa/", "bb/"))])
def test_f16_levels_above_the_buckets(
    watch: Watch, bases: list[Path], tmp_path: Path, pattern: str, prefixes: tuple[str, str]
) -> None:
    """A directory of buckets renamed in, out, to another name (another tenant's), exchanged, and removed."""
    base, first, second = bases[0], prefixes[0], prefixes[1]
    index = watch(*bases, layout=Layout(pattern))
    for bucket in ("01", "02"):
        fill(tmp_path / "made" / bucket, 3, prefix=bucket)
    (tmp_path / "made").rename(base / "aa")
    index.sync(DEADLINE)
    assert keys(index) == sorted(f"{first}{bucket}page{n}_m" for bucket in ("01", "02") for n in range(3))
    (base / "aa").rename(base / "bb")
    index.sync(DEADLINE)
    assert keys(index) == sorted(f"{second}{bucket}page{n}_m" for bucket in ("01", "02") for n in range(3))
    fill(base / "aa" / "01", 1, 9_000)
    audit(index, bases, pattern)
    exchange(base / "aa", base / "bb")
    audit(index, bases, pattern)
    write(base / "aa" / "02" / "late_m")
    write(base / "bb" / "03" / "late_m")
    audit(index, bases, pattern)
    assert {f"{first}late_m", f"{second}late_m"} <= set(keys(index))
    (base / "aa").rename(tmp_path / "out")
    write(tmp_path / "out" / "02" / "outside_m")
    index.sync(DEADLINE)
    assert keys(index) == sorted((f"{second}page0_m", f"{second}late_m"))
    (base / "aa").symlink_to(tmp_path / "out")
    shutil.rmtree(base / "bb")
    index.sync(DEADLINE)
    assert len(index) == 0
    (base / "aa").unlink()
    (tmp_path / "out").rename(base / "aa")
    audit(index, bases, pattern)
    assert f"{first}outside_m" in index
    assert_quiet(index)


@pytest.mark.parametrize("pattern", ["[0-9a-f][0-9a-f]", TWO_LEVELS, TENANTS])
@pytest.mark.parametrize("seed", [1, 2])
def test_f16_anything_with_directories(
    watch: Watch, bases: list[Path], tmp_path: Path, pattern: str, seed: int
) -> None:
    """Two hundred steps by chance, several between two barriers: directories of every level made, populated, renamed,
    exchanged, removed, replaced by symlinks and files."""
    chance = random.Random(seed)
    depth = pattern.count("/") + 1
    index = watch(*bases, layout=Layout(pattern))
    (tmp_path / "outside").mkdir()

    def place() -> Path:
        path = chance.choice([*bases, tmp_path / "outside"])
        for _ in range(chance.randint(1, depth)):
            path = path / chance.choice(("a0", "b1", "c2"))
        return path

    def step(n: int) -> None:
        one, other = place(), place()
        action = chance.choice(("fill", "fill", "rename", "rename", "exchange", "exchange", "remove", "link", "file"))
        if action == "fill":
            fill(one, chance.randint(0, 8), 1_000 * n)
        elif action == "rename":
            one.rename(other)
        elif action == "exchange":
            exchange(one, other)
        elif action == "remove":
            one.unlink() if one.is_symlink() or one.is_file() else shutil.rmtree(one)
        elif action == "link":
            one.symlink_to(other)
        else:
            one.write_bytes(b"")

    for n in range(200):
        try:
            step(n)
        except OSError:
            continue  # not empty, missing, inside itself: chance does not know
        if n % 7 == 0:
            audit_real(index, bases, depth)
    audit_real(index, bases, depth)
    assert index.health().losses == 0
    index.close()


def audit_real(index: GroupIndex, bases: list[Path], depth: int) -> None:
    """The index is the disk, where no directory on the way is a symlink (a glob follows those)."""
    index.sync(DEADLINE)
    found: dict[str, int] = {}
    level = [entry for base in bases for entry in os.scandir(base)]
    for _ in range(depth):
        level = [
            entry for directory in level if directory.is_dir(follow_symlinks=False) for entry in os.scandir(directory)
        ]
    for entry in level:
        if entry.is_file(follow_symlinks=False):
            found[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
    # Chance may put a bucket's file where the names would be a bucket's: every file here has a key but an empty one.
    assert {path: mtime for path, (mtime, _) in in_index(index).items()} == found
