"""What a host embeds: the index under test, or what a user would write with watchdog alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import islice
from typing import Literal, Protocol

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from nixl_index import GroupIndex
from tests.bench.cpu import process_seconds
from tests.bench.spin import Run
from tests.bench.trees import all_paths, read_disk

Variant = Literal["process", "thread", "stock"]
SYNC_SECONDS = 120.0


class Embedded(Protocol):
    """One of them."""

    def count(self) -> int:
        """How many files it has. No system call, no lock: the host's loop asks a thousand times a second."""

    def settle(self, expected: int, grace: float) -> str:
        """Wait until it has what it will have; who cannot tell, for `grace` seconds. Returns what went wrong, if
        anything."""

    def lags(self, closes: Sequence[float], run: Run) -> list[float]:
        """Seconds from the close of each file that it has until it had it."""

    def audit(self) -> dict[str, int]:
        """What it has, against the disk."""

    def scout_seconds(self) -> float:
        """CPU seconds of its other process."""

    def notes(self) -> dict[str, object]:
        """What else there is to say."""

    def close(self) -> None:
        """Stop it."""


def embed(variant: Variant, bases: Sequence[str]) -> Embedded:
    """Start one."""
    return Stock(bases) if variant == "stock" else Indexed(bases, variant)


class Indexed:
    """`GroupIndex`."""

    def __init__(self, bases: Sequence[str], isolation: Literal["process", "thread"]) -> None:
        self._bases = bases
        self._index = GroupIndex.watch(*bases, isolation=isolation)

    def count(self) -> int:
        return self._index.shards

    def settle(self, expected: int, grace: float) -> str:
        del grace
        try:
            self._index.sync(SYNC_SECONDS)
        except Exception as error:  # noqa: BLE001 - it is a finding, and the run goes on
            return f"sync: {type(error).__name__}: {error}"
        count = self._index.shards
        return "" if count == expected else f"sync returned with {count} of {expected} shards"

    def lags(self, closes: Sequence[float], run: Run) -> list[float]:
        """From the counts: the n-th file was there when n files were. Files of one batch may change places so, which
        moves no mean and hardly a quantile."""
        lags, times, at = [], run.times, 0
        for number, closed in enumerate(closes, 1):
            while at < len(times) and run.counts[at] < number:
                at += 1
            if at == len(times):
                break
            lags.append(max(0.0, times[at] - closed))
        return lags

    def audit(self) -> dict[str, int]:
        ours = {shard.path: shard.mtime_ns for group in self._index for shard in group.shards}
        return compare(ours, read_disk(self._bases))

    def scout_seconds(self) -> float:
        pid = self._index.health().scout_pid
        return process_seconds(pid) if pid else 0.0

    def notes(self) -> dict[str, object]:
        health = self._index.health()
        names = ("state", "losses", "overflows", "reconciles", "scout_restarts", "mended", "errors", "last_error")
        return {name: getattr(health, name) for name in names if getattr(health, name)}

    def close(self) -> None:
        self._index.close()


class Stock(FileSystemEventHandler):
    """watchdog's own observer, and a handler that keeps a dict. It notes the time too, so that lags are exact."""

    def __init__(self, bases: Sequence[str]) -> None:
        self._bases = bases
        self._seen: dict[str, tuple[int, float]] = {}
        self._observer = Observer()
        for base in bases:
            self._observer.schedule(self, base, recursive=True)
        self._observer.start()

    def on_created(self, event: FileSystemEvent) -> None:
        self._take(event)

    def on_closed(self, event: FileSystemEvent) -> None:
        self._take(event)

    def _take(self, event: FileSystemEvent) -> None:
        if event.is_directory:
            return
        path = os.fsdecode(event.src_path)
        try:
            mtime = os.lstat(path).st_mtime_ns
        except FileNotFoundError:
            self._seen.pop(path, None)
            return
        known = self._seen.get(path)
        self._seen[path] = (mtime, known[1] if known else time.monotonic())

    def count(self) -> int:
        return len(self._seen)

    def settle(self, expected: int, grace: float) -> str:
        until = time.monotonic() + grace
        while len(self._seen) < expected and time.monotonic() < until:
            time.sleep(0.05)
        return ""

    def lags(self, closes: Sequence[float], run: Run) -> list[float]:
        del run
        paths = islice(all_paths(self._bases), len(closes))
        seen = ((self._seen.get(path), closed) for path, closed in zip(paths, closes, strict=True))
        return [max(0.0, known[1] - closed) for known, closed in seen if known]

    def audit(self) -> dict[str, int]:
        return compare({path: mtime for path, (mtime, _) in self._seen.copy().items()}, read_disk(self._bases))

    def scout_seconds(self) -> float:
        return 0.0

    def notes(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()


def compare(ours: dict[str, int], disk: dict[str, int]) -> dict[str, int]:
    """Shard by shard: what is missing, what is not there, whose mtime is another."""
    both = ours.keys() & disk.keys()
    return {
        "on_disk": len(disk),
        "missing": len(disk) - len(both),
        "extra": len(ours) - len(both),
        "wrong_mtime": sum(ours[path] != disk[path] for path in both),
    }
