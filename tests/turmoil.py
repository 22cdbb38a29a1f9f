"""Turmoil: processes that do random things to the files below some bases, and inotify queues that overflow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nixl_index import GroupIndex

BUCKETS = 16
"""`00` to `0f` of each base belong to the writers. Others may come and go under their hands."""
SPARE = "ff"
"""A bucket that no writer touches: whoever fills the queue does it here."""
_CROWDED = 25


class Operations:
    """One random operation on the files below the bases at a time; what others did meanwhile is no error.

    It keeps nothing but a counter for new names, so a writer that was killed can be replaced at any time.
    """

    def __init__(self, seed: int, bases: list[Path]) -> None:
        self._random = random.Random(seed)
        self._bases = bases
        self._limbo = bases[0].parent / "limbo"  # the same file system, and no bucket
        self._limbo.mkdir(exist_ok=True)
        self._seed = seed
        self._made = 0

    def step(self) -> None:
        """Do one."""
        works = {
            self._create: 30,
            self._rewrite: 15,
            self._rename: 15,
            self._unlink: 15,
            self._touch: 15,
            self._move_out: 5,
            self._move_in: 5,
        }
        (work,) = self._random.choices(list(works), list(works.values()))
        with suppress(FileNotFoundError, NotADirectoryError, FileExistsError):
            work()

    def _bucket(self) -> Path:
        return self._random.choice(self._bases) / f"{self._random.randrange(BUCKETS):02x}"

    def _name(self) -> str:
        self._made += 1
        return f"{self._seed:x}-{self._made // 8:x}_model_{self._random.randrange(4)}_4"

    def _some(self, directory: Path) -> Path:
        names = os.listdir(directory)
        if not names:
            raise FileNotFoundError
        return directory / self._random.choice(names)

    def _create(self) -> None:
        bucket = self._bucket()
        bucket.mkdir(exist_ok=True)
        (bucket / self._name()).write_bytes(b"x" * self._random.randrange(1, 9_000))

    def _rewrite(self) -> None:
        fd = os.open(self._some(self._bucket()), os.O_RDWR | self._random.choice((0, os.O_TRUNC)))
        try:
            os.write(fd, b"y" * self._random.randrange(20_000))
        finally:
            os.close(fd)

    def _rename(self) -> None:
        bucket = self._bucket()
        there = self._random.choice((bucket, self._bucket()))
        old = self._some(bucket)
        old.rename(there / self._random.choice((old.name, self._name())))

    def _unlink(self) -> None:
        bucket = self._bucket()
        names = os.listdir(bucket)
        for name in self._random.sample(names, min(len(names), 1 + len(names) // _CROWDED)):
            (bucket / name).unlink()

    def _touch(self) -> None:
        when = time.time_ns() + self._random.choice((0, -(10**15), 10**15))
        os.utime(self._some(self._bucket()), ns=(when, when))

    def _move_out(self) -> None:
        old = self._some(self._bucket())
        old.rename(self._limbo / old.name)

    def _move_in(self) -> None:
        old = self._some(self._limbo)
        old.rename(self._bucket() / old.name)


class Writer:
    """A process that does `Operations`, as many as it is told at a time; between two `go` it rests."""

    def __init__(self, seed: int, bases: list[Path]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.turmoil", str(seed), *map(str, bases)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            text=True,
        )

    def go(self, count: int) -> None:
        """Start so many operations."""
        with suppress(BrokenPipeError):  # it was killed: `rests` tells
            assert self.process.stdin
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()

    def rests(self) -> bool:
        """Wait until it has done them. False if it was killed instead."""
        assert self.process.stdout
        return self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        """End it, in the middle of whatever it does."""
        self.process.kill()
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def writers(count: int, bases: list[Path]) -> Iterator[list[Writer]]:
    """So many writers, ended at the end."""
    started = [Writer(seed, bases) for seed in range(1, count + 1)]
    try:
        yield started
    finally:
        for writer in started:
            writer.close()


def alternate(base: Path, times: int) -> None:
    """Make so many events that the kernel cannot merge: neighbours differ."""
    bucket = base / SPARE
    names = [bucket / ".one", bucket / ".two"]
    for name in names:
        name.touch()
    for n in range(times):
        os.utime(names[n % 2], ns=(n, n))


def queue_length() -> int:
    """How many events the kernel keeps for one inotify instance."""
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@contextmanager
def held(index: GroupIndex) -> Iterator[None]:
    """Keep the scout from reading its inotify queue: stop the process; let the thread wait where it reads."""
    emitter = index._observer.emitter
    assert emitter
    with resumable(emitter.pid) if emitter.pid else _reader_held(index):
        yield


@contextmanager
def resumable(pid: int) -> Iterator[None]:
    """Stop a process, and continue it at the end."""
    os.kill(pid, SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGCONT)


@contextmanager
def _reader_held(index: GroupIndex) -> Iterator[None]:
    emitter = index._observer.emitter
    assert emitter
    assert emitter._link
    assert emitter._link._scout
    assert emitter._link._scout._tree
    watches = emitter._link._scout._tree.watches
    gate = threading.Event()
    read: Callable[[], object] = watches.read

    def wait_and_read() -> object:
        gate.wait()
        return read()

    watches.read = wait_and_read  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del watches.read
        gate.set()


@contextmanager
def overflowing(index: GroupIndex, base: Path) -> Iterator[None]:
    """Whatever is done in here, the scout learns of it after its queue was full: some of it by no event. The bucket
    `SPARE` of the base is known to the index before."""
    with held(index):
        yield
        alternate(base, queue_length() + 100)


def main() -> None:
    """A writer: a number at standard input, so many operations, `done` at standard output."""
    operations = Operations(int(sys.argv[1]), [Path(base) for base in sys.argv[2:]])
    for line in sys.stdin:
        for _ in range(int(line)):
            operations.step()
        print("done", flush=True)


if __name__ == "__main__":
    main()
