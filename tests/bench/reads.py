"""`reads`: an index with `reads=True`, while shards are read 5,000 times a second: what each read takes of the CPU."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from nixl_index import GroupIndex
from nixl_index.looks import READ_SECONDS
from tests.bench import bare
from tests.bench.cpu import process_seconds, thread_seconds
from tests.bench.harness import Settings, child
from tests.bench.rows import Result
from tests.bench.spin import Run
from tests.bench.trees import RANKS
from tests.bench.writer import Writer

_RATE = 5_000
_SYNC_SECONDS = 60.0


class Told(TypedDict):
    """What came of the reads: how many there were, how many were noticed, and CPU seconds."""

    reads: int
    noticed: int
    host: float
    scout: float


def run(settings: Settings) -> Iterator[Result]:
    """The index, beside watchdog's own observer with a handler that counts."""
    shards, seconds = settings.shards // 10, 0.3 if settings.quick else 10.0
    bases = settings.tree(shards)
    with settings.scratch() as root:
        task = bases, str(root), shards // RANKS, seconds
        ours, stock = (child("reads", variant, *task) for variant in ("index", "stock"))
    noticed, theirs = (100 * told["noticed"] / told["reads"] for told in (ours, stock))
    yield Result.of("reads.noticed", noticed, "%", theirs, against="the stock observer")
    host, theirs = (told["host"] / told["reads"] * 1e6 for told in (ours, stock))
    yield Result.of("reads.host_cpu", host, "us/read", theirs, against="the stock observer", bare=bare.waking(_RATE))
    scout = ours["scout"] / ours["reads"] * 1e6
    least = "a loop of lstat that wakes up as often"
    yield Result.of("reads.scout_cpu", scout, "us/read", bare.looking(_RATE), against=least)


def by_index(bases: Sequence[str], root: str, pages: int, seconds: float) -> Told:
    """A group that was read is younger than when it was written."""
    with GroupIndex.watch(*bases, reads=True) as index, _reader(bases, root, pages, seconds) as reader:
        scout, begun, now = index.health().scout_pid, thread_seconds(), time.time_ns()
        scout_begun = process_seconds(scout)
        reads = _read(reader)
        index.sync(_SYNC_SECONDS)
        time.sleep(READ_SECONDS + 0.5)  # the last reads are told when their second is over
        host, scout_seconds = thread_seconds() - begun, process_seconds(scout) - scout_begun
        noticed = sum(group.recency_ns > now for group in index)
        read = min(pages, reads // RANKS)
        return {"reads": reads, "noticed": reads * noticed // read, "host": host, "scout": scout_seconds}


class _Counter(FileSystemEventHandler):
    def __init__(self) -> None:
        self.count = 0

    def on_closed_no_write(self, event: FileSystemEvent) -> None:
        self.count += not event.is_directory


def by_stock(bases: Sequence[str], root: str, pages: int, seconds: float) -> Told:
    """Each close of a file that was not written is an event."""
    observer, counter = Observer(), _Counter()
    for base in bases:
        observer.schedule(counter, base, recursive=True)
    observer.start()
    try:
        with _reader(bases, root, pages, seconds) as reader:
            begun = thread_seconds()
            reads = _read(reader)
            until = time.monotonic() + 5.0
            while counter.count < reads and time.monotonic() < until:
                time.sleep(0.01)
            return {"reads": reads, "noticed": counter.count, "host": thread_seconds() - begun, "scout": 0.0}
    finally:
        observer.stop()
        observer.join()


def _reader(bases: Sequence[str], root: str, pages: int, seconds: float) -> Writer:
    return Writer(str(Path(root, "board")), bases, _RATE, seconds, pages)


def _read(reader: Writer) -> int:
    """Have it read all, beside a quiet main thread. Returns how often it read."""
    reader.board.go()
    Run().until(lambda: reader.board.done, spinning=False)
    return len(reader.board.closes)


if __name__ == "__main__":
    variant, *task = json.loads(sys.argv[1])
    print(json.dumps({"index": by_index, "stock": by_stock}[variant](*task)))
