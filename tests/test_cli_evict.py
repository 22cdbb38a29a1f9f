"""`nixl-index evict`: exactly what was shown goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index.cli.main import main
from tests.mounts import Mounts, immutable
from tests.support import page_key, write, write_page
from tests.terminal import Terminal, environment

PAGES = 6


@pytest.fixture
def pages(bases: list[Path]) -> list[list[Path]]:
    """The shards of some pages of 8 KiB, oldest first."""
    return [write_page(bases, page, data=bytes(4096)) for page in range(PAGES)]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as mounts:
        yield mounts


class Answer:
    """Somebody at a terminal, who does something before the answer."""

    def __init__(self, answer: str, before: Callable[[], object] = lambda: None) -> None:
        self._answer = answer
        self._before = before

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        self._before()
        return self._answer


def evict(*arguments: str | Path) -> int:
    return main(["evict", *map(str, arguments)])


def left(pages: list[list[Path]]) -> list[int]:
    """The pages that are whole. No page is half there."""
    assert all(len({path.exists() for path in page}) == 1 for page in pages)
    return [number for number, page in enumerate(pages) if page[0].exists()]


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [(["--groups", "2"], 2), (["--groups", "99"], 6), (["--bytes", "8193"], 2), (["--bytes", "16KiB"], 2)],
)
def test_the_oldest_go(
    bases: list[Path], pages: list[list[Path]], arguments: list[str], gone: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evict(*bases, *arguments, "--dry-run") == 0
    assert left(pages) == list(range(PAGES))
    told = capsys.readouterr().out
    assert told.startswith(f"would evict {gone} groups, {2 * gone} shards, {8 * gone}.0 KiB\n  {page_key(0)}")
    assert told.count("2 shards  8.0 KiB  written ") == min(gone, 5)
    assert ("... and 1 more (-v names them)" in told) == (gone == 6)
    assert evict(*bases, *arguments, "--yes") == 0
    assert left(pages) == list(range(gone, PAGES))
    assert capsys.readouterr().out.endswith(f"evicted {gone} groups, {2 * gone} shards; {8 * gone}.0 KiB freed\n")


def test_verbose_names_each(bases: list[Path], pages: list[list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    assert evict(*bases, "--groups", "6", "--yes", "-v") == 0
    told = capsys.readouterr().out
    assert all(told.count(page_key(page)) == 2 for page in range(6))
    assert "... and" not in told


def test_one_model_alone(bases: list[Path], pages: list[list[Path]]) -> None:
    other = write(bases[0] / "00" / "abc_other_0_2", mtime=1)
    assert evict(*bases, "--groups", "99", "--yes", "--model", "Qwen/Qwen3-32B") == 0
    assert left(pages) == []
    assert other.exists()


def test_nothing_to_evict(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert evict(*bases, "--groups", "1", "--yes") == 0
    assert capsys.readouterr().out == "nothing to evict: there is no group\n"
    assert evict(*bases, "--to", "99.99", "--yes") == 0
    assert capsys.readouterr().out == "nothing to evict: no disk is used more than 99.99 %\n"
    assert evict(*bases, "--to", "100", "--yes") == 2
    assert "--to 100 is no aim" in capsys.readouterr().err


def test_down_to_a_usage(bases: list[Path], mounts: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    """On the disk that is too full, and no further than it takes."""
    disk = mounts.mount("tmpfs", bases[0])
    mounts.remount(disk, "size=4m")
    full = [write_page([disk], page, data=bytes(16384)) for page in range(100)]
    other = [write_page([bases[1]], page, mtime=1) for page in range(200, 203)]

    def usage() -> float:
        stat = os.statvfs(disk)
        return 100 * (stat.f_blocks - stat.f_bavail) / stat.f_blocks

    assert usage() > 75
    assert evict(disk, "--to", "50%", "--yes") == 0
    assert 49 < usage() <= 50
    assert left(full) == list(range(100 - len(left(full)), 100))
    assert evict(*bases, "--to", "40", "--yes") in (0, 1)  # the other disk is this machine's, and may be fuller
    assert 39 < usage() <= 40 or not left(full)
    assert len(left(other)) in (0, 3)


def test_a_usage_that_is_out_of_reach(bases: list[Path], mounts: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    disk = mounts.mount("tmpfs", bases[0])
    mounts.remount(disk, "size=1m")
    write(disk / "other data", bytes(600_000))
    pages = [write_page([disk], page, data=bytes(4096)) for page in range(3)]
    assert evict(disk, "--to", "10", "--dry-run") == 1
    told = capsys.readouterr()
    assert told.err == "nixl-index: all that can go would not bring every disk down to 10 %: the rest is other data\n"
    assert left(pages) == [0, 1, 2]
    assert evict(disk, "--to", "10", "--yes") == 1
    assert left(pages) == []


def test_a_disk_that_was_not_named_is_missed(
    bases: list[Path], pages: list[list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evict(*bases, "--groups", "1", "--dry-run") == 0
    assert capsys.readouterr().err == ""
    there = [page for page in pages if any(bases[0] in path.parents for path in page)]
    torn = [page for page in there if any(bases[1] in path.parents for path in page)]
    assert 2 * len(torn) > len(there)
    assert evict(bases[0], "--groups", "1", "--dry-run") == 0
    said = f"of the {len(there)} oldest groups {len(torn)} lack ranks: were the base dirs of all disks named?"
    assert said in capsys.readouterr().err


def test_without_a_terminal_it_refuses(
    bases: list[Path],
    pages: list[list[Path]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert evict(*bases, "--groups", "1") == 2
    told = capsys.readouterr()
    assert "give --yes, or --dry-run to look" in told.err
    assert told.out == ""
    assert left(pages) == list(range(PAGES))


def test_what_changed_while_it_asked_stays(
    bases: list[Path],
    pages: list[list[Path]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rewritten group stays, and no other one goes in its place."""
    monkeypatch.setattr(sys, "stdin", Answer("y\n", lambda: pages[1][0].write_bytes(b"new")))
    assert evict(*bases, "--groups", "3") == 1
    assert left(pages) == [1, 3, 4, 5]
    told = capsys.readouterr()
    assert told.err == "evict 3 groups, 6 shards, 24.0 KiB? [y/N] "
    assert "evicted 2 groups, 4 shards; 16.0 KiB freed\n" in told.out
    assert "left alone: 1 group that changed" in told.out or "skipped: 1 group" in told.out


def test_what_cannot_be_unlinked_is_told(
    bases: list[Path], pages: list[list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    with immutable(*pages[0]):
        assert evict(*bases, "--groups", "2", "--yes") == 1
    assert left(pages) == [0, 2, 3, 4, 5]
    told = capsys.readouterr().out
    assert "evicted 1 group, 2 shards; 8.0 KiB freed\n" in told
    assert f"failed: 1 group\n  {page_key(0)}: Operation not permitted\n" in told


@pytest.mark.parametrize(("answer", "code", "gone"), [("y\r", 0, 2), ("yes\r", 0, 2), ("\r", 1, 0), ("no\r", 1, 0)])
def test_it_asks(bases: list[Path], pages: list[list[Path]], tmp_path: Path, answer: str, code: int, gone: int) -> None:
    with Terminal(environment(tmp_path), "evict", *bases, "--groups", "2") as terminal:
        terminal.wait_for("evict 2 groups, 4 shards, 16.0 KiB? [y/N] ")
        assert left(pages) == list(range(PAGES))
        terminal.type(answer)
        assert terminal.end() == code
        assert ("nothing was evicted" in terminal.output) == (not gone)
    assert left(pages) == list(range(gone, PAGES))


def test_ctrl_c_at_the_question(bases: list[Path], pages: list[list[Path]], tmp_path: Path) -> None:
    with Terminal(environment(tmp_path), "evict", *bases, "--groups", "2") as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.output
    assert left(pages) == list(range(PAGES))
