"""Bad arguments: a clear error at the call, nothing started, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nixl_index import GroupIndex
from nixl_index.link import Isolation
from tests.support import write


def refused(error: type[Exception], match: str, *paths: Any, **options: Any) -> None:
    """The `no_leaks` fixture sees that nothing stays behind."""
    for block in (True, False):
        with pytest.raises(error, match=match):
            GroupIndex.watch(*paths, block=block, **options)


def test_no_such_base(isolation: Isolation, bases: list[Path]) -> None:
    refused(FileNotFoundError, "nowhere.*does not exist", bases[0] / "nowhere", isolation=isolation)
    refused(FileNotFoundError, "nowhere", bases[0], bases[1] / "nowhere", isolation=isolation)


def test_a_file_as_base(isolation: Isolation, bases: list[Path]) -> None:
    refused(NotADirectoryError, "not a directory", write(bases[0] / "file"), isolation=isolation)
    refused(FileNotFoundError, "does not exist", bases[0] / "file" / "below", isolation=isolation)


def test_base_given_twice(isolation: Isolation, bases: list[Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bases[0])
    refused(ValueError, "same directory", bases[0], bases[0], isolation=isolation)
    refused(ValueError, "same directory", bases[0], tmp_path / "link", isolation=isolation)
    refused(ValueError, "same directory", bases[0], tmp_path / "disk1" / ".." / "disk0", isolation=isolation)


def test_base_inside_another(isolation: Isolation, bases: list[Path]) -> None:
    (bases[0] / "in" / "side").mkdir(parents=True)
    refused(ValueError, "lies inside", bases[0], bases[0] / "in" / "side", isolation=isolation)
    refused(ValueError, "lies inside", bases[0] / "in" / "side", bases[1], bases[0], isolation=isolation)


def test_unreadable_base(isolation: Isolation, tmp_path: Path) -> None:
    """Root reads everything, so it gives that power up first."""
    code = f"""if True:
        import sys
        from nixl_index import GroupIndex
        try:
            GroupIndex.watch({str(tmp_path)!r}, isolation={isolation!r})
        except PermissionError as error:
            sys.exit(0 if "unreadable" in str(error) else str(error))
        sys.exit("no error")
    """
    powers = "-dac_override,-dac_read_search"
    drop = [] if os.getuid() else ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}"]
    for mode in (0o300, 0o600):
        tmp_path.chmod(mode)
        try:
            done = subprocess.run([*drop, sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
        finally:
            tmp_path.chmod(0o755)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"scheme": "page_{}"}, TypeError, "KeyScheme"),
        ({"scheme": 7}, TypeError, "KeyScheme"),
        ({"layout": "??"}, TypeError, "Layout"),
        ({"isolation": "container"}, ValueError, "isolation is 'container'"),
        ({"poll_interval": 0}, ValueError, "poll_interval is 0"),
        ({"poll_interval": None}, TypeError, "poll_interval"),
        ({"rescan_interval": -1}, ValueError, "rescan_interval is -1"),
        ({"rescan_interval": float("nan")}, ValueError, "rescan_interval is nan"),
        ({"rescan_interval": "1h"}, TypeError, "rescan_interval"),
    ],
)
def test_bad_options(bases: list[Path], options: dict[str, Any], error: type[Exception], match: str) -> None:
    refused(error, match, *bases, **options)


def test_bad_paths() -> None:
    refused(ValueError, "needs a base dir")
    refused(ValueError, "no path", "")
    refused(ValueError, "no path", "a\0b")
    refused(TypeError, "bytes", b"/tmp")
    refused(TypeError, "int", 3)
