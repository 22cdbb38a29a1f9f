"""FAILURES 40-43: space that unlinks do not give back, that is unknown, full to the brim, or other people's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nixl_index import Cleaner, GroupIndex
from tests.mounts import Mounts
from tests.support import DEADLINE, audit, eventually, on_disk, page_key, write, write_page

Watch = Callable[..., GroupIndex]

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a tmpfs of its own: `small("name", size="16m")`."""
    with Mounts(tmp_path) as mounts:

        def make(name: str, **options: object) -> Path:
            point = mounts.mount("tmpfs", tmp_path / name)
            mounts.remount(point, ",".join(f"{option}={value}" for option, value in options.items()))
            return point

        yield make


def usage(path: Path) -> float:
    stat = os.statvfs(path)
    of_files = 100 * (stat.f_files - stat.f_favail) / stat.f_files
    return max(100 * (stat.f_blocks - stat.f_bavail) / stat.f_blocks, of_files)


def fill(bases: list[Path], pages: range, shard_bytes: int = 64 << 10) -> dict[int, list[Path]]:
    """Pages of two shards."""
    return {page: write_page(bases, page, data=b"x" * shard_bytes) for page in pages}


def there(pages: dict[int, list[Path]]) -> list[int]:
    """The pages that are there; each whole, or not at all."""
    for page, paths in pages.items():
        assert len({path.exists() for path in paths}) == 1, f"page {page} is torn"
    return [page for page, paths in pages.items() if paths[0].exists()]


def test_a_hot_disk_is_brought_down_to_low(small: Callable[..., Path], watch: Watch) -> None:
    """The measure of all that follows: just so many groups go that usage is below `low`."""
    base = small("disk", size="16m")
    pages = fill([base], range(110))
    assert usage(base) > 80
    with Cleaner(watch(base), 80, 70) as cleaner:
        eventually(lambda: cleaner.health().evicted_groups, "it evicts")
    left = there(pages)
    assert left == list(range(110 - len(left), 110))
    assert 70 - 2 * 100 * 128 / (16 << 10) < usage(base) <= 70
    assert cleaner.health().usage[str(base)] >= 80
    assert cleaner.health().last_error == ""


def test_f40_files_that_are_held_open(small: Callable[..., Path], watch: Watch) -> None:
    """Usage does not fall though they go. A tick takes no more than the deficit that it measured."""
    base = small("disk", size="16m")
    pages = fill([base], range(110))
    index = watch(base)
    with ExitStack() as opened:
        for paths in pages.values():
            for path in paths:
                opened.enter_context(open(path, "rb"))
        before = usage(base)
        deficit = (before - 70) / 100 * 16 * MIB
        eviction = Cleaner(index, 80, 70).tick()
        assert eviction
        assert usage(base) == pytest.approx(before, abs=0.5)
        assert deficit <= sum(group.disk_bytes for group in eviction.evicted) <= deficit + 128 * 1024
    assert usage(base) <= 70
    there(pages)


def test_f41_statvfs_fails(small: Callable[..., Path], watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """Unknown is neither full nor empty: nothing goes from there, it is said, and the other disk is cleaned."""
    disks = [small("disk0", size="8m"), small("disk1", size="8m")]
    bases = [disk / "cache" for disk in disks]
    kept, cleaned = fill([bases[0]], range(60)), fill([bases[1]], range(100, 160))
    assert min(map(usage, disks)) > 80
    index = watch(*bases)
    cleaner = Cleaner(index, 80, 70)
    bases[0].rename(disks[0] / "away")
    eviction = cleaner.tick()
    assert eviction
    assert {group.key for group in eviction.evicted} <= {page_key(page) for page in range(100, 160)}
    assert len(there(cleaned)) < 60
    assert len(on_disk([disks[0] / "away"])) == 120
    problem = rf"the usage of {re.escape(repr(str(bases[0])))} is unknown: "
    assert re.search(problem, cleaner.health().last_error)
    assert re.search(problem, caplog.text)
    assert list(cleaner.health().usage) == [str(bases[1])]
    eventually(lambda: index.health().frozen, "the base is known to be out of sight")
    assert not cleaner.tick()
    (disks[0] / "away").rename(bases[0])
    eventually(lambda: not index.health().frozen, "the base is back")
    audit(index, bases)
    assert cleaner.tick()
    assert cleaner.health().last_error == ""
    assert len(there(kept)) < 60


def test_f42_few_inodes_are_left(small: Callable[..., Path], watch: Watch) -> None:
    """Bytes are free; usage is that of inodes, and so is what has to go."""
    base = small("disk", size="64m", nr_inodes=600)
    pages = fill([base], range(160), 1)
    assert usage(base) >= 80
    cleaner = Cleaner(watch(base), 80, 70)
    eviction = cleaner.tick()
    assert 0 < len(eviction.evicted) < 60
    left = there(pages)
    assert left == list(range(160 - len(left), 160))
    assert 69 < usage(base) <= 70.4
    assert cleaner.health().usage[str(base)] >= 80
    assert not cleaner.tick()


def _exhaust_inodes(base: Path) -> None:
    count = 0
    while True:
        try:
            (base / f"other{count}").touch()
        except OSError:
            return
        count += 1


def test_f42_no_inode_is_left(small: Callable[..., Path], watch: Watch) -> None:
    """Not one, not even for a lock: this is when eviction is needed most."""
    base = small("disk", size="64m", nr_inodes=400)
    pages = fill([base], range(60), 1)
    index = watch(base)
    _exhaust_inodes(base)
    assert os.statvfs(base).f_favail == 0
    eviction = Cleaner(index, 80, 70).tick()
    assert eviction
    assert len(there(pages)) == 60 - len(eviction.evicted)


@pytest.mark.parametrize("ticked_before", [False, True])
def test_f42_no_byte_is_left(small: Callable[..., Path], watch: Watch, ticked_before: bool) -> None:
    """Not one, not even to say who has the lock."""
    base = small("disk", size="8m")
    pages = fill([base], range(40))
    index = watch(base)
    cleaner = Cleaner(index, 80, 70)
    if ticked_before:
        Cleaner(index, 60, 59.9).tick()
    try:
        with open(base / "other", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        assert os.statvfs(base).f_bavail == 0
    eviction = cleaner.tick()
    assert eviction, cleaner.health().last_error
    assert usage(base) <= 70
    there(pages)


def test_f43_other_peoples_data(small: Callable[..., Path], watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """Even an empty cache would not reach the low watermark: said once, with the figures. Their files stay."""
    disk = small("disk", size="8m")
    other = [write(disk / "data" / f"{number}", b"x" * MIB) for number in range(7)]
    pages = fill([disk / "cache"], range(4))
    index = watch(disk / "cache")
    cleaner = Cleaner(index, 80, 70)
    own, needed = index.nbytes, round((usage(disk) - 70) / 100 * 8 * MIB)
    for _ in range(3):
        cleaner.tick()
        assert not there(pages)
        fill([disk / "cache"], range(2), 1)
        index.sync(DEADLINE)
    (said,) = [record.getMessage() for record in caplog.records if "even an empty cache" in record.getMessage()]
    assert str(disk / "cache") in said
    assert f"has {own}" in said
    assert f"{needed} bytes" in said
    assert all(path.exists() for path in other)


def test_f43_other_peoples_inodes(small: Callable[..., Path], watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """The same of inodes."""
    disk = small("disk", size="64m", nr_inodes=400)
    for number in range(330):
        write(disk / "data" / f"{number}", b"")
    pages = fill([disk / "cache"], range(5), 1)
    cleaner = Cleaner(watch(disk / "cache"), 80, 70)
    for _ in range(2):
        cleaner.tick()
    assert not there(pages)
    assert len(list((disk / "data").iterdir())) == 330
    (said,) = [record.getMessage() for record in caplog.records if "even an empty cache" in record.getMessage()]
    assert str(disk / "cache") in said


def test_f43_said_again_when_it_is_so_again(
    small: Callable[..., Path], watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once until it is over: another time is another warning."""
    monkeypatch.setattr("nixl_index.logs.SECONDS", 0.0)
    disk = small("disk", size="8m")
    fill([disk / "cache"], range(2))
    cleaner = Cleaner(watch(disk / "cache"), 80, 70)
    for _ in range(2):
        other = write(disk / "other", b"x" * 7 * MIB)
        cleaner.tick()
        cleaner.tick()
        other.unlink()
        cleaner.tick()
    said = [record.getMessage() for record in caplog.records if "even an empty cache" in record.getMessage()]
    assert len(said) == 2


def test_two_bases_on_one_file_system_count_once(small: Callable[..., Path], watch: Watch) -> None:
    """Its deficit is freed once, of the oldest on either."""
    disk = small("disk", size="16m")
    bases = [disk / "one", disk / "two"]
    pages = fill(bases, range(110))
    before = usage(disk)
    cleaner = Cleaner(watch(*bases), 80, 70)
    eviction = cleaner.tick()
    deficit = (before - 70) / 100 * 16 * MIB
    assert deficit <= sum(group.disk_bytes for group in eviction.evicted) <= deficit + 128 * 1024
    left = there(pages)
    assert left == list(range(110 - len(left), 110))
    assert {path: round(value) for path, value in cleaner.health().usage.items()} == dict.fromkeys(
        map(str, bases), round(before)
    )


def test_min_free(small: Callable[..., Path], watch: Watch) -> None:
    """Free in any case, however cold the watermarks find it, and with a capacity that is far from reached too."""
    base = small("disk", size="16m")
    pages = fill([base], range(80))
    index = watch(base)
    assert not Cleaner(index, 80, 70).tick()
    assert not Cleaner(index, 80, 70, capacity="1TiB", min_free="5MiB").tick()
    assert Cleaner(index, 80, 70, capacity="1TiB", min_free="8MiB").tick()
    stat = os.statvfs(base)
    # The lock file came after the measure, and takes a block.
    assert 8 * MIB - stat.f_frsize <= stat.f_bavail * stat.f_frsize < 8 * MIB + 2 * 128 * 1024
    assert Cleaner(index, 80, 70, min_free="9MiB").tick()
    assert os.statvfs(base).f_bavail * stat.f_frsize >= 9 * MIB
    there(pages)
