"""The drop-in for SGLang: what its users call, and what its tests replace."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from nixl_index import sglang
from nixl_index.sglang import HiCacheL3Cleaner, _parse_group_key, _safe_unlink
from tests.support import on_disk, route, write, write_page

COMPONENTS = ("", "_k", "_v", "_kv_k", "_kv_v", "_swa_k", "_swa_v", "_mamba_temporal", "_mamba_conv_0")
CASES = Path(__file__).parent / "cases" / "keys.tsv"


def dirs(bases: list[Path]) -> list[str]:
    return [str(base) for base in bases]


def falling(cleaner: HiCacheL3Cleaner, bases: list[Path], *percent: float) -> list[str]:
    """Replace what the cleaner is told of its disks: these, one after the other, of the first base; the others are
    cold. Returns the paths that are asked for."""
    asked: list[str] = []
    left = list(percent)

    def usage(path: str) -> float:
        asked.append(path)
        if path != str(bases[0]):
            return 10.0
        return left.pop(0) if len(left) > 1 else left[0]

    cleaner._disk_usage_pct = usage  # type: ignore[method-assign]
    return asked


# --- the constructor ---


def test_storage_dirs(tmp_path: Path) -> None:
    assert HiCacheL3Cleaner("/a", 0).storage_dirs == ["/a"]
    assert HiCacheL3Cleaner(["/a", "", "/b"], 0).storage_dirs == ["/a", "/b"]
    assert HiCacheL3Cleaner("", 0).storage_dirs == []
    cleaner = HiCacheL3Cleaner([""], 0)
    assert cleaner._tick() is False
    cleaner.start()
    assert cleaner._thread is None


def test_settings() -> None:
    cleaner = HiCacheL3Cleaner("/a", 3, interval_sec=5, recheck_groups=0)
    assert (cleaner.high_watermark, cleaner.low_watermark, cleaner.interval_sec) == (80.0, 70.0, 5)
    assert (cleaner.tp_rank, cleaner.recheck_groups) == (3, 1)
    for low in (80.0, 90.0):
        with pytest.raises(ValueError, match=rf"low_watermark.*{low}.*80.0"):
            HiCacheL3Cleaner("/a", 0, high_watermark=80.0, low_watermark=low)


# --- a tick, without a thread ---


def test_18_files_over_two_disks_go_and_the_new_page_stays(bases: list[Path]) -> None:
    names = [f"page-{age}_model_{rank}_2{part}" for age in ("old", "new") for rank in range(2) for part in COMPONENTS]
    for name in names:
        write(route(name, bases), b"x", 100 if "old" in name else 200)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0, recheck_groups=1)
    falling(cleaner, bases, 90, 60)
    assert cleaner._tick() is True
    assert {Path(path).name for path in on_disk(bases)} == {name for name in names if "new" in name}
    assert cleaner._thread is None


def test_nothing_is_hot(bases: list[Path]) -> None:
    write_page(bases, 0)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0)
    asked = falling(cleaner, bases, 79.9)
    assert cleaner._tick() is False
    assert set(asked) == set(dirs(bases)), "by the paths that it was given"
    assert len(on_disk(bases)) == 2


def test_asks_again_after_so_many_groups(bases: list[Path]) -> None:
    """And takes groups with a shard on the hot disk only."""
    for page in range(9):
        write(bases[0] / "00" / f"hot{page}_m", b"x", 100 + page)
        write(bases[1] / "00" / f"cold{page}_m", b"x", 50 + page)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0, recheck_groups=3)
    falling(cleaner, bases, 90, 75, 69)
    assert cleaner._tick() is True
    assert {path.name for path in bases[0].glob("00/*")} == {"hot6_m", "hot7_m", "hot8_m"}
    assert len(list(bases[1].glob("00/*"))) == 9


def test_ends_when_nothing_is_left(bases: list[Path]) -> None:
    write_page(bases[:1], 0)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0)
    falling(cleaner, bases, 99)
    assert cleaner._tick() is True
    assert cleaner._tick() is False
    assert not on_disk(bases)


class _AlwaysHot(HiCacheL3Cleaner):
    def _disk_usage_pct(self, path: str) -> float:
        return 90.0


def test_replaced_by_a_subclass(bases: list[Path]) -> None:
    write_page(bases, 0)
    assert _AlwaysHot(dirs(bases), 0)._tick() is True
    assert not on_disk(bases)


def test_replaced_on_the_class(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write_page(bases, 0)
    monkeypatch.setattr(HiCacheL3Cleaner, "_disk_usage_pct", lambda self, path: 90.0)
    assert HiCacheL3Cleaner(dirs(bases), 0)._tick() is True
    assert not on_disk(bases)


def test_replaced_statvfs(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write_page(bases, 0)
    real = os.statvfs(bases[0])

    def statvfs(path: str) -> os.statvfs_result:
        return os.statvfs_result((real.f_bsize, real.f_frsize, 100, 5, 5, *tuple(real)[5:]))

    monkeypatch.setattr(os, "statvfs", statvfs)
    cleaner = HiCacheL3Cleaner(dirs(bases), 0)
    assert cleaner._disk_usage_pct(str(bases[0])) == 95.0
    assert cleaner._tick() is True
    assert not on_disk(bases)


def test_usage_is_that_of_the_disk(bases: list[Path]) -> None:
    stat = os.statvfs(bases[0])
    percent = HiCacheL3Cleaner("/a", 0)._disk_usage_pct(str(bases[0]))
    assert percent == pytest.approx(100 * (stat.f_blocks - stat.f_bavail) / stat.f_blocks, abs=2)
    assert HiCacheL3Cleaner("/a", 0)._disk_usage_pct("/nonexistent") == 0.0


def test_a_directory_that_does_not_exist(bases: list[Path], tmp_path: Path) -> None:
    write_page(bases[:1], 0)
    cleaner = HiCacheL3Cleaner([str(tmp_path / "none"), *dirs(bases)], 0)
    falling(cleaner, bases, 90, 60)
    assert cleaner._tick() is True
    assert HiCacheL3Cleaner(str(tmp_path / "none"), 0)._tick() is False


def test_a_directory_that_is_given_twice(bases: list[Path], tmp_path: Path) -> None:
    """As a user's configuration may have it: in so many words, with a slash, or by a symlink."""
    write_page(bases[:1], 0)
    (tmp_path / "link").symlink_to(bases[0])
    cleaner = HiCacheL3Cleaner([str(bases[0]), str(bases[0]), f"{bases[0]}/", str(tmp_path / "link")], 0)
    falling(cleaner, bases, 90, 60)
    assert cleaner._tick() is True
    assert not on_disk(bases)


def test_watermarks_that_never_clean(bases: list[Path]) -> None:
    """What SGLang's own accepts is no error here."""
    write_page(bases, 0)
    assert HiCacheL3Cleaner(dirs(bases), 0, high_watermark=101.0, low_watermark=100.0)._tick() is False
    assert len(on_disk(bases)) == 2


def test_a_capacity(bases: list[Path]) -> None:
    for page in range(10):
        write_page(bases, page, data=b"x" * 100_000)
    assert HiCacheL3Cleaner(dirs(bases), 0, capacity_gb=1)._tick() is False
    assert HiCacheL3Cleaner(dirs(bases), 0, capacity_gb=0.001)._tick() is True
    assert 500_000 < sum(size for _, size in on_disk(bases).values()) <= 700_000


# --- the functions of the module ---


def test_parse_group_key() -> None:
    rows = [line.split("\t") for line in CASES.read_text().splitlines() if "\tseed" in line]
    assert len(rows) == 21
    for name, key, _why in rows:
        assert _parse_group_key(name) == key
    assert _parse_group_key("_k") == "_k", "always a name"


def test_safe_unlink(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a", b"x" * 123)
    assert _safe_unlink(str(path)) == (True, 123)
    assert not path.exists()
    assert _safe_unlink(str(path)) == (False, 0)
    assert _safe_unlink(str(tmp_path)) == (False, 0)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert sglang.logger.name == "nixl_index.sglang"
