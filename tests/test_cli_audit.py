"""`nixl-index audit`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nixl_index import KeyScheme, Layout
from nixl_index.cli.main import main
from nixl_index.cli.strays import FOREIGN, HIDDEN, IRREGULAR, OUTSIDE, UNREADABLE, find_strays
from tests.support import page_key, write, write_page

MODELS = KeyScheme(["Qwen/Qwen3-32B"])


def audit(*arguments: str | Path) -> int:
    return main(["audit", *map(str, arguments)])


def test_all_well(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_page(bases, 0, data=bytes(4096))
    assert audit(*bases) == 0
    told = capsys.readouterr()
    assert told == ("index and disk agree: 1 group, 2 shards, 8.0 KiB\n", "")


def test_what_no_event_told_of_is_a_difference(
    bases: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link makes no event that is watched for."""
    known = write_page(bases, 0)[0]
    outside = write(tmp_path / "outside")

    def happen(_seconds: float) -> None:
        for number in range(7):
            os.link(outside, known.parent / f"abc{number}_m")
        write_page(bases, 1)  # events tell of this one

    monkeypatch.setattr("nixl_index.cli.audit.sleep", happen)
    assert audit(*bases, "--seconds", "1") == 1
    head, what, *paths, more = capsys.readouterr().out.splitlines()
    assert head.startswith("index and disk differed: 9 groups, 11 shards, ")
    assert what == "7 files written, and no event told of it"
    assert paths == [f"  {known.parent}/abc{number}_m" for number in range(5)]
    assert more == "  ... and 2 more (-v names them)"


def test_torn_groups(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in write_page(bases, 0, ranks=4, components=("_k", "_v")):
        if "_2_4" in path.name or "_3_4_v" in path.name:
            path.unlink()
    for page in range(1, 7):
        write_page(bases, page)[1].unlink()
    assert audit(*bases) == 0
    told = capsys.readouterr().out
    assert "\n7 torn groups\n" in told
    assert told.endswith("  ... and 2 more (-v names them)\n")
    assert audit(*bases, "-v") == 0
    told = capsys.readouterr().out
    assert f"  {page_key(0)}: lacks rank 2 of _k; 2,3 of _v\n" in told
    assert told.count(": lacks rank 1\n") == 6


def test_what_is_no_shard_is_named(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_page(bases, 0)
    stray = write(bases[1] / "readme", bytes(5000))
    assert audit(*bases) == 0
    told = capsys.readouterr().out
    assert told.endswith(f"never evicted, below {bases[1]}: 1 file outside the layout, 8.0 KiB\n  {stray}\n")


def strays(base: Path, layout: str = "[0-9a-f][0-9a-f]", examples: int = 99) -> dict[str, list[str]]:
    found = find_strays(str(base), Layout(layout), MODELS, examples)
    return {kind: sorted(os.path.relpath(path, base) for path in one.paths) for kind, one in found.items()}


def test_kinds_of_strays(tmp_path: Path) -> None:
    write_page([tmp_path], 0)
    for path in ("readme", "00/.hidden", "00/a_m.tmp.12", "00/abc_other_0_2", "xy/abc_m", "00/deep/er/abc_m"):
        write(tmp_path / path)
    write(tmp_path / ".nixl_index.lock")
    (tmp_path / "01").symlink_to(tmp_path / "00")
    (tmp_path / "00" / f"abc_{page_key(0)}").symlink_to("readme")
    os.mkfifo(tmp_path / "00" / "fifo")
    (tmp_path / "empty").mkdir()
    assert strays(tmp_path) == {
        OUTSIDE: ["00/deep/er/abc_m", "01", "readme", "xy/abc_m"],
        HIDDEN: ["00/.hidden", "00/a_m.tmp.12"],
        FOREIGN: ["00/abc_other_0_2"],
        IRREGULAR: [f"00/abc_{page_key(0)}", "00/fifo"],
    }


def test_strays_of_other_layouts(tmp_path: Path) -> None:
    write(tmp_path / "abc_Qwen-Qwen3-32B")
    write(tmp_path / ".nixl_index.lock")
    write(tmp_path / "tenant" / "00" / "abc_Qwen-Qwen3-32B")
    write(tmp_path / "tenant" / "x")
    assert strays(tmp_path, "") == {OUTSIDE: ["tenant/00/abc_Qwen-Qwen3-32B", "tenant/x"]}
    assert strays(tmp_path, "*/[0-9a-f][0-9a-f]") == {OUTSIDE: ["abc_Qwen-Qwen3-32B", "tenant/x"]}


def test_many_strays_are_counted_and_some_are_named(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"{number}", bytes(4096))
    found = find_strays(str(tmp_path), Layout(), MODELS, 3)[OUTSIDE]
    assert (found.files, found.nbytes, len(found.paths)) == (10, 40_960, 3)


def test_a_directory_that_is_gone_is_unreadable(tmp_path: Path) -> None:
    """Root may read everything, so none that it may not is at hand."""
    assert strays(tmp_path / "gone") == {UNREADABLE: ["."]}
