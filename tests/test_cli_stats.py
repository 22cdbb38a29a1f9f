"""`nixl-index stats`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from nixl_index.cli import text
from nixl_index.cli.main import main
from tests.support import page_key, write, write_page


@pytest.fixture
def pages(bases: list[Path]) -> list[Path]:
    """Three pages of two shards: an hour, a day and a year old; a torn one of another model that is new; a stray."""
    now = time.time()
    for page, age in enumerate((3_700, 90_000, 400 * 86_400)):
        write_page(bases, page, data=bytes(4096), mtime=now - age)
    write(bases[0] / "00" / "abc_other-model_0_2", bytes(8192), now)
    write(bases[0] / "00" / ".hidden")
    return bases


def stats(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["stats", *map(str, arguments)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_text(pages: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    total, _, header, *rows = stats(capsys, *pages).splitlines()
    assert total == "4 groups, 7 shards, 32.0 KiB; 1 torn"
    assert header.split("  ")[0] == "base dir"
    assert [row.split()[0] for row in rows[:2]] == list(map(str, pages))
    assert rows[2] == ""
    assert [row.split()[0] for row in rows[4:6]] == ["Qwen-Qwen3-32B", "other-model"]
    assert rows[4].split()[1:3] == ["3", "6"]
    assert sum(row.endswith("8.0 KiB  " + "#" * 30) for row in rows) == 4
    assert rows[-1] == "left out: 1 without a shard's name, 0 of other models"


def test_json(pages: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(stats(capsys, *pages, "--json"))
    assert (told["groups"], told["shards"], told["bytes"], told["torn"]) == (4, 7, 32768, 1)
    assert told["newest"] - told["oldest"] == pytest.approx(400 * 86_400, abs=1)
    assert (told["ignored"], told["foreign"]) == (1, 0)
    disk = os.statvfs(pages[0])
    for base in pages:
        found = [path for path in base.rglob("*_*") if path.is_file()]
        one = told["bases"][str(base)]
        assert one["shards"] == len(found)
        assert one["bytes"] == sum(path.stat().st_blocks * 512 for path in found)
        usage = max(
            100 * (disk.f_blocks - disk.f_bavail) / disk.f_blocks,
            100 * (disk.f_files - disk.f_favail) / disk.f_files if disk.f_files else 0,
        )
        assert one["usage_percent"] == pytest.approx(usage, abs=2)
    assert {model: one["groups"] for model, one in told["models"].items()} == {"Qwen-Qwen3-32B": 3, "other-model": 1}
    assert {age["below_seconds"]: age["groups"] for age in told["ages"] if age["groups"]} == {
        60: 1,
        6 * 3600: 1,
        7 * 86_400: 1,
        None: 1,
    }


def test_one_model(pages: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(stats(capsys, *pages, "--json", "--model", "other/model"))
    assert (told["groups"], told["foreign"]) == (1, 6)


def test_tenants(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write(bases[0] / "one" / "00" / "abc_m")
    write(bases[0] / "two" / "00" / "abc_m")
    write(bases[0] / "two" / "00" / "nothing")
    told = json.loads(stats(capsys, bases[0], "--json", "--layout", "*/[0-9a-f][0-9a-f]"))
    assert set(told["models"]) == {"one/m", "two/m", "two/-"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no directory fits the layout '[0-9a-f][0-9a-f]': is this the base dir? See --layout"),
        (["--layout", "x"], "none lies in the directories of the layout 'x'"),
        (["--layout", "y", "--model", "a/b"], "1 file there, but of other models than --model names"),
    ],
)
def test_nothing_there_says_why(
    bases: list[Path], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (bases[0] / "x").mkdir()
    write(bases[0] / "y" / "abc_m")
    assert main(["stats", str(bases[0]), *arguments]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("0 groups, 0 shards, 0 B; 0 torn\n")
    assert told.err == f"nixl-index: no shards: {said}\n"


def test_names_cannot_command_the_terminal(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write(bases[0] / "00" / "abc_\x1b[2J\udcff\n")
    assert "\\x1b[2J\\udcff\\n" in stats(capsys, bases[0])


def test_numbers_as_people_read_them() -> None:
    assert [text.size(n) for n in (0, 1023, 1024, 1536 * 1024, 5 << 40, 5 << 50)] == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 TiB", "5,120.0 TiB"),
    ]
    assert [text.age(s) for s in (-1, 0, 59, 60, 5400, 86_400, 4e6)] == [
        *("0 s", "0 s", "59 s", "1 min", "1.5 h", "1 d", "46.3 d"),
    ]
    assert text.shortened(page_key(0), 24) == f"{page_key(0)[:11]}...{page_key(0)[-10:]}"
    assert text.shortened("short", 24) == "short"
    assert [text.count(n, "group") for n in (0, 1, 2000)] == ["0 groups", "1 group", "2,000 groups"]
