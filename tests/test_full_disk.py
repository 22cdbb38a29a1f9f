"""A full disk, for real: a writer that never rests, beside a host that never rests, on a tmpfs of 512 MiB.

`NIXL_INDEX_FULL_DISK_SECONDS` is how long it takes (120 unless given).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import Mounts
from tests.provoke import ROOT
from tests.support import eventually, page_key, page_names, route

SECONDS = float(os.environ.get("NIXL_INDEX_FULL_DISK_SECONDS", "120"))
CHECKPOINTS = 10

_HOST = """
import json, sys, threading
from nixl_index import Cleaner, GroupIndex

evicted, stopped = [], False

def wait_for_the_end():
    global stopped
    sys.stdin.read()
    stopped = True

def on_evict(group):
    evicted.append(group.key)

with GroupIndex.watch(sys.argv[1]) as index, Cleaner(index, on_evict=on_evict) as cleaner:
    threading.Thread(target=wait_for_the_end).start()
    print("ready", flush=True)
    turns = 0
    while not stopped:  # as a scheduler does: it wants the GIL all the time
        turns += 1
    cleaner.stop()
    index.sync(30)
    health, index_health = cleaner.health(), index.health()
    torn = [group.key for group in index.torn()]
    keys = sorted(group.key for group in index)
print(json.dumps({
    "evicted": evicted, "left": keys, "torn": torn, "turns": turns, "ticks": health.ticks,
    "error": health.last_error or index_health.last_error, "losses": index_health.losses,
    "quarantined": index_health.quarantined,
}))
"""
"""An index and a cleaner with their defaults (80 and 70 percent, a tick every 30 s) in a process that spins."""

_WRITER = """
import os, random, sys, time
from tests.support import page_names, route
from pathlib import Path

base, log, seconds, rate = Path(sys.argv[1]), open(sys.argv[2], "w", buffering=1), float(sys.argv[3]), 200e6
chance, data = random.Random(1), os.urandom(1 << 20)
begun, written, page, highest = time.monotonic(), 0, 0, 0.0
while time.monotonic() < begun + seconds:
    newest = 0
    for name in page_names(page, 2, ("_k", "_v")):
        path = route(name, [base])
        path.parent.mkdir(exist_ok=True)
        size = chance.randrange(256 << 10, 1 << 20)
        with open(path, "wb", buffering=0) as file:
            view = memoryview(data)[:size]
            while view:
                view = view[file.write(view):]
            newest = max(newest, os.fstat(file.fileno()).st_mtime_ns)
        written += size
        stat = os.statvfs(base)
        highest = max(highest, 100 * (stat.f_blocks - stat.f_bavail) / stat.f_blocks)
    print(page, newest, file=log)
    page += 1
    ahead = written / rate - (time.monotonic() - begun)
    if ahead > 0:
        time.sleep(ahead)
print(highest, written / (time.monotonic() - begun))
"""


@contextmanager
def _running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _pages(log: Path) -> dict[int, int]:
    """The pages that were completely written, and when."""
    lines = log.read_text().splitlines()
    return {int(page): int(newest) for page, newest in (line.split() for line in lines if line.count(" ") == 1)}


def _present(base: Path, pages: dict[int, int]) -> dict[int, int]:
    """How many shards of each of these pages are there."""
    return {page: sum(route(name, [base]).exists() for name in page_names(page, 2, ("_k", "_v"))) for page in pages}


def _no_page_stays_torn(base: Path, log: Path) -> None:
    """What was completely written is whole, or gone, or is just about to go."""
    pages = _pages(log)
    torn = {page: pages[page] for page, count in _present(base, pages).items() if count not in (0, 4)}

    def are_gone() -> bool:
        return not any(_present(base, torn).values())

    eventually(are_gone, f"pages are torn: {sorted(torn)}")


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
def test_a_writer_never_fills_the_disk(tmp_path: Path, record_property: Any) -> None:
    log = tmp_path / "pages"
    log.touch()
    with Mounts(tmp_path) as mounts:
        base = mounts.mount("tmpfs", tmp_path / "disk")
        mounts.remount(base, "size=512m")
        with _running(_HOST, base) as host:
            assert host.stdout
            assert host.stdout.readline() == "ready\n"
            with _running(_WRITER, base, log, SECONDS) as writer:
                for _ in range(CHECKPOINTS):
                    until = time.monotonic() + SECONDS / CHECKPOINTS
                    eventually(lambda: time.monotonic() > until, "the next checkpoint", SECONDS)  # noqa: B023
                    _no_page_stays_torn(base, log)
                    assert host.poll() is None
                told, errors = writer.communicate(timeout=60)
                assert not errors, errors  # ENOSPC among them
            told_by_host, host_errors = host.communicate("", timeout=60)
            assert not host.returncode, host_errors
        highest, rate = map(float, told.split())
        pages, result = _pages(log), json.loads(told_by_host)
        present = _present(base, pages)

    record_property("highest_usage", highest)
    print(
        f"highest usage {highest:.1f} %, {rate / 1e6:.0f} MB/s, {len(pages)} pages, {result['ticks']} ticks, "
        f"{len(result['evicted'])} groups evicted, losses {result['losses']}, host {result['turns'] / SECONDS:.0f}/s"
    )
    assert set(present.values()) <= {0, 4}
    assert not result["torn"]
    assert result["error"] == ""
    assert result["quarantined"] == 0
    left = {page for page, count in present.items() if count}
    assert result["left"] == sorted(page_key(page) for page in left)
    assert sorted(result["evicted"]) == sorted(page_key(page) for page in pages if page not in left)
    # Pages of one tick of the file system's clock are equally old.
    assert max(pages[page] for page in pages if page not in left) <= min(pages[page] for page in left)
    assert highest < 95
