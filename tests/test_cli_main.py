"""What all commands have in common: help, errors, exit codes, streams."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nixl_index
from nixl_index.cli.main import COMMANDS, main
from tests.support import write, write_page
from tests.terminal import NIXL_INDEX, Terminal, environment

MANY = 600
"""Pages whose names alone fill a pipe."""


def usage_error(*arguments: str | Path) -> None:
    """Wrong usage that argparse finds."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert ended.value.code == 2


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        told = capsys.readouterr().out
        if arguments == ["--version"]:
            assert told == f"nixl-index {nixl_index.__version__}\n"
        elif len(arguments) == 1:
            assert all(name in told for name in COMMANDS)
            assert "exit codes" in told
        else:
            assert f"example:\n  nixl-index {arguments[0]} /mnt" in told
            assert "changes nothing" in told or "never unlinks anything but" in told


def test_the_library_knows_nothing_of_the_command_line() -> None:
    code = "import sys, nixl_index; print([m for m in sys.modules if m.startswith(('nixl_index.cli', 'rich'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_bases_that_cannot_be_watched(
    command: str, bases: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # `run` sets its own
    more = {"evict": ["--groups", "1", "--yes"], "run": ["--high", "80", "--low", "70"]}.get(command, [])
    write(bases[0] / "file")
    for paths, said in (
        ([bases[0] / "no\nwhere"], "no\\nwhere' does not exist: create it first"),
        ([bases[0] / "file"], "is not a directory"),
        ([bases[0], bases[0]], "are the same directory"),
    ):
        assert main([command, *map(str, paths), *more]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.splitlines()[-1].startswith("nixl-index: base dir")
        assert said in told.err


def test_wrong_usage(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        ([], "required: COMMAND"),
        (["stat"], "invalid choice: 'stat'"),
        (["stats"], "required: PATH"),
        (["stats", bases[0], "--layout", "**"], "argument --layout: '**' is no layout"),
        (["top", bases[0], "--high", "much"], "'much' is no percentage: give a number from 0 to 100"),
        (["top", bases[0], "--high", "101%"], "'101%' is no percentage"),
        (["top", bases[0], "--interval", "0"], "'0' is no time: give seconds above 0"),
        (["top", bases[0], "--iterations", "0"], "give a whole number from 1"),
        (["evict", bases[0]], "one of the arguments --groups --bytes --to is required"),
        (["evict", bases[0], "--groups", "1", "--to", "70"], "not allowed with"),
        (["evict", bases[0], "--bytes", "10Gx"], "the size is '10Gx': give a number and a unit such as KiB"),
        (["run", bases[0]], "required: --high, --low"),
        (["run", bases[0], "--high", "80", "--low", "70", "--metrics-port", "65536"], "'65536' is no port"),
    ):
        usage_error(*arguments)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["top", "run"])
def test_watermarks_that_make_no_sense(command: str, bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(bases[0]), "--high", "70", "--low", "80"]) == 2
    assert "they need 0 <= low < high <= 100" in capsys.readouterr().err


def test_a_model_without_a_name(bases: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(bases[0]), "--model", ""]) == 2
    assert "models: '' cannot be part of a file name" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_fine(bases: list[Path], tmp_path: Path) -> None:
    for page in range(MANY):
        write_page(bases, page, data=b"")
    command = [*NIXL_INDEX, "evict", *map(str, bases), "--groups", str(MANY), "--dry-run", "-v"]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline().startswith(f"would evict {MANY} groups")
        running.stdout.close()
        assert [line for line in running.stderr if not line.startswith("INFO ")] == []
    assert running.returncode == 141


@pytest.mark.parametrize("missing", [(), ("rich",)], ids=["rich", "plain"])
def test_the_first_scan_shows_on_a_terminal_alone(bases: list[Path], tmp_path: Path, missing: tuple[str, ...]) -> None:
    for page in range(MANY):
        write_page(bases, page)
    env = environment(tmp_path, *missing)
    with Terminal(env, "stats", *bases) as terminal:
        assert terminal.end() == 0
        scan, _, stats = terminal.output.rpartition("\x1b[2K" if not missing else "\r\x1b[K")
        assert "scanning" in scan
        assert f"{2 * MANY:,} shards" in scan or missing
        assert "/s" in scan
        assert stats.startswith(f"{MANY} groups, {2 * MANY:,} shards"), stats
    ran = subprocess.run([*NIXL_INDEX, "stats", *bases], env=env, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.startswith(f"{MANY} groups, {2 * MANY:,} shards")


def test_streams_that_are_not_there(bases: list[Path], tmp_path: Path) -> None:
    shard = write_page(bases, 0)[0]
    command = shlex.join([*NIXL_INDEX, "evict", *map(str, bases), "--groups", "1"])
    for yes, streams, code in (("", "<&-", 2), ("--yes", "<&- >&-", 0), ("", "<&- >&- 2>&-", 2)):
        ran = subprocess.run(f"{command} {yes} {streams}", shell=True, env=environment(tmp_path), check=False)
        assert ran.returncode == code
        assert shard.exists() == (not yes)
        write(shard)


@pytest.mark.parametrize("missing", [(), ("rich",)], ids=["rich", "plain"])
def test_ctrl_c(bases: list[Path], tmp_path: Path, missing: tuple[str, ...]) -> None:
    with Terminal(environment(tmp_path, *missing), "audit", *bases, "--seconds", "60") as terminal:
        terminal.wait_for("nixl-index: no shards")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.output
