"""`nixl-index top`: what comes and goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import GroupIndex
from nixl_index.cli.main import main
from nixl_index.cli.top import OLDEST, Lookout
from nixl_index.watermarks import Watermarks
from tests.support import DEADLINE, page_key, write_page
from tests.terminal import NIXL_INDEX, Terminal, environment

Watch = Callable[..., GroupIndex]
MARKS = Watermarks(80.0, 70.0)


def test_a_look_tells_what_came_and_went(watch: Watch, bases: list[Path]) -> None:
    written = [write_page(bases, page, data=bytes(4096)) for page in range(10)]
    index = watch(*bases)
    lookout = Lookout(index, MARKS, None)
    view = lookout.look()
    assert view.rates == (0, 0, 0, 0)
    assert [group.key for group in view.oldest] == [page_key(page) for page in range(OLDEST)]
    assert {(group.shards, group.nbytes) for group in view.oldest} == {(2, 8192)}
    assert all(group.age > 86_400 for group in view.oldest)
    assert [base.path for base in view.bases] == list(map(str, bases))
    assert sum(base.shards for base in view.bases) == view.health.shards == 20
    assert sum(base.nbytes for base in view.bases) == view.nbytes == 20 * 4096
    disk = os.statvfs(bases[0])
    assert view.bases[0].usage
    assert view.bases[0].usage >= 100 * (disk.f_blocks - disk.f_bavail) / disk.f_blocks - 2

    for path in written[0]:
        path.unlink()
    for page in range(10, 13):
        write_page(bases, page, data=bytes(4096))
    index.sync(DEADLINE)
    rates = lookout.look().rates
    assert rates.shards_in == pytest.approx(3 * rates.shards_out)
    assert rates.bytes_in == pytest.approx(4096 * rates.shards_in)
    assert rates.bytes_out == pytest.approx(4096 * rates.shards_out)
    assert rates.shards_out > 0
    assert lookout.look().rates == (0, 0, 0, 0)


def test_a_capacity_is_used_by_the_shards_alone(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0, data=bytes(4096))
    view = Lookout(watch(*bases), MARKS, 32768).look()
    assert [base.usage for base in view.bases] == [25.0, 25.0]


def test_a_base_out_of_sight_says_so(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = watch(*bases)
    bases[0].rename(bases[0].with_name("away"))
    with pytest.raises(Exception, match="frozen"):
        index.sync(DEADLINE)
    view = Lookout(index, MARKS, None).look()
    assert view.bases[0].usage is None
    assert "out of sight" in view.bases[0].frozen
    assert "out of sight" in view.problem
    assert view.health.state == "frozen"


def test_lines(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_page(bases, 0, data=bytes(4096))
    arguments = ["--capacity", "32KiB", "--interval", "0.05", "--iterations", "2"]
    assert main(["top", *map(str, bases), *arguments]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "time",
        "groups",
        "shards",
        "bytes",
        "in/s",
        "bytes",
        "out/s",
        "bytes",
        "usage",
        "oldest",
        "state",
    ]
    assert len(lines) == 2
    for line in lines:
        assert line.split()[1:-3] == ["1", "2", "8.0", "KiB", "0", "0", "B", "0", "0", "B", "25.0", "%"]
        assert line.endswith(" d  live")


def test_lines_go_out_at_once_and_ctrl_c_ends_them(bases: list[Path], tmp_path: Path) -> None:
    with Terminal(environment(tmp_path, "rich"), "top", *bases, "--interval", "0.05") as terminal:
        terminal.wait_for("live\r\n")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.output


def test_a_screen_and_ctrl_c_gives_the_terminal_back(bases: list[Path], tmp_path: Path) -> None:
    write_page(bases, 0, data=bytes(4096))
    env = environment(tmp_path)
    with Terminal(env, "top", *bases, "--interval", "0.05", "--high", "81", "--low", "71") as terminal:
        terminal.wait_for("directories watched")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.output
        _, _, screen = terminal.output.partition("\x1b[?1049h")  # a screen of its own
        shown, _, after = screen.partition("\x1b[?1049l")
        assert "\x1b[?25h" in shown + after  # the cursor is back
        assert after.strip() == ""
        for text in ("1 group, 2 shards, 8.0 KiB", str(bases[0])[:20], "at 71 and 81 %", "┿", page_key(0)[:20], "live"):
            assert text in shown


def test_lines_end_with_their_reader(bases: list[Path], tmp_path: Path) -> None:
    with subprocess.Popen(
        [*NIXL_INDEX, "top", *map(str, bases), "--interval", "0.05"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline().startswith("time")
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 141
