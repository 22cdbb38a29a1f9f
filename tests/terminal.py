"""A command on a terminal of its own: a real pty, for what only happens there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.support import DEADLINE

ROOT = Path(__file__).parents[1]
NIXL_INDEX = [sys.executable, "-W", "error", "-m", "nixl_index"]


def environment(tmp_path: Path, *missing: str) -> dict[str, str]:
    """Finds the package without it being installed, and does not find these modules even where they are."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(exist_ok=True)
    for module in missing:
        (hidden / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    return {**os.environ, "PYTHONPATH": f"{hidden}:{ROOT}", "TERM": "xterm-256color", "NO_COLOR": "1"}


class Terminal:
    """Runs `nixl-index` with its three streams on a pty. A context manager: at its end the command has ended."""

    def __init__(self, env: dict[str, str], *arguments: str | Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal to it

        command = [*NIXL_INDEX, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal
        )
        os.close(theirs)
        self.output = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def wait_for(self, text: str) -> None:
        """Read until this was shown."""
        until = time.monotonic() + DEADLINE
        while text not in self.output:
            assert time.monotonic() < until, f"{text!r} did not come: {self.output!r}"
            assert self._read(), f"it ended without {text!r}: {self.output!r}"

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Read until it ends, and return its exit code."""
        until = time.monotonic() + DEADLINE
        while self._read():
            assert time.monotonic() < until, f"it does not end: {self.output!r}"
        return self.process.wait(DEADLINE)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.5)[0]:
            return True
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # EIO: nobody has the other end open any more
            return False
        self.output += data.decode(errors="replace")
        return bool(data)
