"""Mounts, loop devices and immutable files for tests, below the test's own directory, and undone at its end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import DEADLINE


class Mounts:
    """What a test mounts. A context manager: at its end everything is thawed, unmounted and detached."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._devices: list[str] = []
        self._frozen: list[Path] = []

    def __enter__(self) -> Mounts:
        if os.geteuid() != 0:
            pytest.skip("needs root: it mounts file systems")
        probe = self._scratch / "probe"
        probe.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "probe", probe], capture_output=True, check=False).returncode:
            pytest.skip("this machine does not let even root mount")
        self.unmount(probe)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for path in list(self._frozen):
            self.thaw(path)
        for point in reversed(mount_points(self._scratch)):
            subprocess.run(["umount", "-l", point], capture_output=True, check=False)
        for device in self._devices:
            _run("losetup", "--detach", device)

    def device(self, name: str) -> str:
        """A loop device with an empty ext4 of its own."""
        image = self._scratch / f"{name}.ext4"
        image.touch()
        os.truncate(image, 8 << 20)
        _run("mkfs.ext4", "-q", "-F", image)
        found = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip(f"this machine has no loop device to spare: {found.stderr.strip()}")
        device = found.stdout.strip()
        self._devices.append(device)
        return device

    def mount(self, source: str, point: Path) -> Path:
        """Mount a device, or a tmpfs where `source` is `tmpfs`, at a directory; made where it is missing. Private: else
        what is mounted in one of two bind mounts shows in the other as well."""
        point.mkdir(parents=True, exist_ok=True)
        _run("mount", *(("-t", "tmpfs") if source == "tmpfs" else ()), source, point)
        _run("mount", "--make-private", point)
        return point

    def bind(self, source: Path, point: Path) -> Path:
        """Have a directory at another path as well."""
        point.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", source, point)
        _run("mount", "--make-private", point)
        return point

    def remount(self, point: Path, option: str) -> None:
        """Change an option of a mount: `ro`, `rw`."""
        self._while_busy("mount", "-o", f"remount,{option}", point)

    def unmount(self, point: Path, *, lazy: bool = False) -> None:
        """Take the topmost mount off. It may be busy for the moment of a look of the scout's."""
        self._while_busy("umount", *(("-l",) if lazy else ()), point)

    @contextmanager
    def frozen(self, point: Path) -> Iterator[None]:
        """A file system that hangs: reads are answered, whatever would write waits, a SIGKILL as well."""
        _run("fsfreeze", "--freeze", point)
        self._frozen.append(point)
        try:
            yield
        finally:
            self.thaw(point)

    def thaw(self, point: Path) -> None:
        """End what `frozen` began. Idempotent."""
        if point in self._frozen:
            self._frozen.remove(point)
            _run("fsfreeze", "--unfreeze", point)

    def _while_busy(self, *command: str | Path) -> None:
        until = time.monotonic() + DEADLINE
        while True:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.returncode:
                return
            assert "busy" in done.stderr, done.stderr
            assert time.monotonic() < until, done.stderr
            time.sleep(0.01)


@contextmanager
def immutable(*paths: Path) -> Iterator[None]:
    """Nobody can remove these files, not even root: EPERM."""
    done = subprocess.run(["chattr", "+i", *paths], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no immutable files here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *paths], check=True)
        for path in paths:
            os.utime(path)  # a change, so that its group leaves the quarantine, and the test ends with a whole index


def mount_points(below: Path) -> list[str]:
    """The mount points below a directory, in the order they were mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for point in (line.split()[4] for line in lines) if point.startswith(f"{below}/")]


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, (command, done.stderr)
