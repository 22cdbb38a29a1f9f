"""What all subjects share: the settings, the trees, and the processes that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.cpu import machine_seconds
from tests.bench.rows import Result
from tests.bench.trees import RANKS, fill, make_bases

ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m tests.bench...` can be started from."""
_TMPFS = "/dev/shm"
_CHILD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run goes: `quick` is a smoke run of seconds, whose figures mean nothing."""

    root: Path
    """Where trees are made; whoever made it removes it."""
    shards: int = 1_000_000
    """The size of the large trees."""
    quick: bool = False
    peer: str | None = None
    """A Python script that times another cleaner: see `peer.py`."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A fresh directory, removed afterwards."""
        with tempfile.TemporaryDirectory(dir=self.root) as path:
            yield Path(path)

    def tree(self, shards: int, ranks: int = RANKS, disks: int = 2) -> list[str]:
        """The base dirs of a tree that all subjects share, made when it is first asked for. Who takes from it puts
        back."""
        root = self.root / f"{shards}-shards-of-{ranks}-on-{disks}"
        if root.exists():
            return [str(root / f"disk{number}") for number in range(disks)]
        bases = make_bases(root, disks)
        fill(bases, shards // ranks, ranks)
        return bases


Subject = Callable[[Settings], Iterable[Result]]


def in_peace(name: str, subject: Subject, settings: Settings) -> Iterator[Result]:
    """The rows of a subject; and last how many cores others had meanwhile, which says what its figures are worth."""
    start, machine, own = time.monotonic(), machine_seconds(), _own_seconds()
    yield from subject(settings)
    foreign = machine_seconds() - machine - (_own_seconds() - own)
    yield Result.of(f"{name}.others", max(0.0, foreign) / (time.monotonic() - start), "cores")


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def roomy_directory(shards: int) -> str | None:
    """A tmpfs where it has room for all trees, else None: the system's temporary directory."""
    if not os.path.isdir(_TMPFS):
        return None
    there = os.statvfs(_TMPFS)
    free = min(there.f_bavail * there.f_frsize, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # Two large trees and some small ones, an empty file at a kilobyte; and what is written for a moment.
    return _TMPFS if there.f_favail > 2.5 * shards and free > 2_500 * shards + (1 << 30) else None


def child(module: str, *task: object, arguments: tuple[str, ...] = ()) -> Any:
    """Run one module of this package in a fresh process, with its task as JSON, and return what it told as JSON. Its
    standard error is ours, so that warnings of the index are seen."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *arguments, *([json.dumps(task)] if task else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=_CHILD_SECONDS, text=True)
    return json.loads(done.stdout)
