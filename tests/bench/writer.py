"""A process that writes or reads pages at a rate, or as fast as it can, and tells when each file was closed.

It tells through a file that both sides map: the host's loop can look without a system call, which would give its GIL
away. The times are of `time.monotonic()`, a clock that all processes share.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from tests.bench.cpu import process_seconds
from tests.bench.harness import ROOT
from tests.bench.trees import RANKS, page_paths

FULL_RATE = 120_000
"""More files a second than one Python process can make: how much room a run at full speed gets."""
_READY, _GO, _DONE, _COUNT, _HEAD = range(5)
_START_SECONDS = 30.0
_STRIDE = 7_919
"""A prime, so that it meets every page."""


class Board:
    """The shared file: a few marks, then the time of each close. One process writes each cell."""

    def __init__(self, path: str, room: int = 0) -> None:
        if room:
            with open(path, "wb") as file:
                file.truncate((_HEAD + room) * 8)
        with open(path, "r+b") as file:
            self.cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self.room = len(self.cells) - _HEAD

    @property
    def done(self) -> bool:
        """Has the writer written its last file? No system call."""
        return self.cells[_DONE] > 0

    @property
    def started(self) -> float:
        """When the writer was told to go."""
        return self.cells[_GO]

    @property
    def ended(self) -> float:
        """When it had written its last file."""
        return self.cells[_DONE]

    @property
    def closes(self) -> list[float]:
        """When each file was closed, in order."""
        return list(self.cells[_HEAD : _HEAD + int(self.cells[_COUNT])])

    def go(self) -> None:
        """Have the writer start."""
        self.cells[_GO] = time.monotonic()

    def wait(self, cell: int) -> None:
        """Wait for a mark of the other side."""
        while not self.cells[cell]:
            time.sleep(0.001)


class Writer:
    """A writer process, ready to go. Leaving the context ends it."""

    def __init__(self, board: str, bases: Sequence[str], rate: int, seconds: float, read: int = 0) -> None:
        """`rate` is in files a second; 0 is as fast as it can. With `read` it reads pages that are there, so many."""
        self.board = Board(board, int((rate or FULL_RATE) * seconds) + RANKS)
        task = json.dumps([board, list(bases), rate, seconds, read])
        self._process = subprocess.Popen([sys.executable, "-m", "tests.bench.writer", task], cwd=ROOT)

    @property
    def seconds(self) -> float:
        """Its CPU seconds so far."""
        return process_seconds(self._process.pid)

    def __enter__(self) -> Writer:
        until = time.monotonic() + _START_SECONDS
        while not self.board.cells[_READY]:
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                raise RuntimeError(f"the writer did not start: exit code {self._process.wait()}")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error:
            self._process.kill()
        code = self._process.wait()
        if code and not error:
            raise RuntimeError(f"the writer ended with exit code {code}")


def page_read(number: int, pages: int) -> int:
    """Which of so many pages is read at this turn: each once, all over the tree, then all over again."""
    return number * _STRIDE % pages


def write(board: Board, bases: Sequence[str], rate: int, seconds: float, read: int) -> None:
    """Write page after page, or read them, all over the tree. Paced by the page: a server's calls come in such
    bursts."""
    board.cells[_READY] = time.monotonic()
    board.wait(_GO)
    cells, clock, start = board.cells, time.monotonic, board.started
    flags = os.O_RDONLY if read else os.O_WRONLY | os.O_CREAT
    page, at, end = 0, _HEAD, _HEAD + board.room - RANKS
    while at <= end and clock() < start + seconds:
        for path in page_paths(bases, page_read(page, read) if read else page):
            os.close(os.open(path, flags, 0o644))
            cells[at] = clock()
            at += 1
        page += 1
        early = start + page * RANKS / rate - clock() if rate else 0
        if early > 0:
            time.sleep(early)
    cells[_COUNT] = at - _HEAD
    cells[_DONE] = clock()


def main() -> None:
    """Do the task that the command line holds."""
    path, bases, rate, seconds, read = json.loads(sys.argv[1])
    write(Board(path), bases, rate, seconds, read)


if __name__ == "__main__":
    main()
