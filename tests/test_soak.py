"""A soak: everything at once, for minutes. At every checkpoint the index is the disk, and the host's memory is flat.

`NIXL_INDEX_SOAK_SECONDS` is how long it takes in all (300 unless given), half of it in each isolation.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex
from tests.support import DEADLINE, audit, eventually
from tests.turmoil import BUCKETS, SPARE, Writer, held, overflowing

Watch = Callable[..., GroupIndex]

SECONDS = float(os.environ.get("NIXL_INDEX_SOAK_SECONDS", "300")) / 2
OVERFLOWS = 10
"""In each isolation: 20 in all."""
WRITERS = 4
GROWTH = 8 << 20
"""Bytes by which the host may differ after the warm-up: the allocator's noise. A leak of one frame a round is more."""


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Steady:
    """An evictor in a thread of its own, that can be paused."""

    def __init__(self, index: GroupIndex) -> None:
        self.running = threading.Lock()
        self.evicted = 0
        self.errors: list[BaseException] = []
        self._evictor = Evictor(index)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evictor")

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            with self.running:
                try:
                    self.evicted += len(self._evictor.evict_oldest(3, timeout=DEADLINE).evicted)
                except Exception as error:  # noqa: BLE001 - the test looks at them
                    self.errors.append(error)

    @contextmanager
    def work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


class _Mischief:
    """What happens beside the writers, by chance."""

    def __init__(self, index: GroupIndex, bases: list[Path], writers: list[Writer]) -> None:
        self.random = random.Random(7)
        self.killed = 0
        self._index = index
        self._bases = bases
        self._writers = writers

    def _bucket(self) -> Path:
        return self.random.choice(self._bases) / f"{self.random.randrange(BUCKETS):02x}"

    def kill_a_writer(self) -> None:
        """In the middle of whatever it does; `_rest` starts another one in its place."""
        self.random.choice(self._writers).process.kill()

    def remove_a_bucket(self) -> None:
        shutil.rmtree(self._bucket(), ignore_errors=True)  # a writer may put something in meanwhile

    def remove_and_recreate_a_bucket(self) -> None:
        bucket = self._bucket()
        shutil.rmtree(bucket, ignore_errors=True)
        bucket.mkdir(exist_ok=True)
        (bucket / f"burst{self.random.randrange(10**9)}_model").write_bytes(b"x")

    def move_a_bucket_out_and_in(self) -> None:
        bucket, away = self._bucket(), self._bases[0].parent / "away"
        with suppress(FileNotFoundError):
            bucket.rename(away)
            with suppress(OSError):  # not empty: a writer has made it anew
                away.rename(bucket)
            shutil.rmtree(away, ignore_errors=True)

    def replace_a_bucket_by_a_symlink(self) -> None:
        bucket, away = self._bucket(), self._bases[0].parent / "limbo"
        shutil.rmtree(bucket, ignore_errors=True)
        with suppress(FileExistsError):
            bucket.symlink_to(away)
            bucket.unlink()

    def stop_the_scout_for_a_moment(self) -> None:
        with held(self._index):
            self.remove_and_recreate_a_bucket()

    def kill_the_scout(self) -> None:
        pid = self._index.health().scout_pid
        if pid:
            restarts = self._index.health().scout_restarts
            os.kill(pid, 9)
            self.killed += 1
            eventually(lambda: self._index.health().scout_restarts > restarts, "another scout runs")

    def one(self) -> None:
        kinds = (
            self.kill_a_writer,
            self.remove_a_bucket,
            self.remove_and_recreate_a_bucket,
            self.move_a_bucket_out_and_in,
            self.replace_a_bucket_by_a_symlink,
            self.stop_the_scout_for_a_moment,
        )
        # Rarely: each costs a start of Python, and what is lost with the scout is listed, not told.
        self.kill_the_scout() if self.random.random() < 0.03 else self.random.choice(kinds)()


def _rest(writers: list[Writer], bases: list[Path], seeds: Iterator[int]) -> int:
    """Wait until no writer writes. Returns how many had been killed, and are replaced."""
    killed = 0
    for place, writer in enumerate(writers):
        if not writer.rests():
            writer.close()
            writers[place] = Writer(next(seeds), bases)
            killed += 1
    return killed


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
def test_soak(watch: Watch, bases: list[Path], record_property: Callable[[str, object], None]) -> None:
    """FAILURES 1, 2, 3, 14-17, 33, 34, 36, 39, 45, 49, all at once."""
    (bases[0] / SPARE).mkdir()
    kept = [bases[0] / SPARE / ".hidden", bases[0] / SPARE / "page_model_0_1.tmp", bases[1] / "notes"]
    for path in kept:
        path.write_bytes(b"kept")
    index = watch(*bases)
    seeds = iter(range(1, 10**6))
    writers = [Writer(next(seeds), bases) for _ in range(WRITERS)]
    mischief, steady = _Mischief(index, bases, writers), _Steady(index)
    resident: list[int] = []
    killed = checkpoints = 0
    overflows = index.health().overflows
    began = time.monotonic()
    try:
        with steady.work():
            while time.monotonic() - began < SECONDS or index.health().overflows - overflows < OVERFLOWS:
                for writer in writers:
                    writer.go(mischief.random.randrange(100, 1_500))
                for _ in range(mischief.random.randrange(6)):
                    mischief.one()
                if checkpoints % 2:
                    with overflowing(index, bases[0]):
                        mischief.remove_and_recreate_a_bucket()
                killed += _rest(writers, bases, seeds)
                with steady.running:  # no eviction is under way
                    audit(index, bases)
                    found = index.audit(DEADLINE)
                    assert not found
                    health = index.health()
                    assert health.state == "live", health
                    assert health.mended >= 0
                    assert all(path.read_bytes() == b"kept" for path in kept)
                    checkpoints += 1
                    resident.append(_resident())
    finally:
        for writer in writers:
            writer.close()
    assert not steady.errors
    assert steady.evicted > 0
    assert killed > 0
    health = index.health()
    assert health.losses >= OVERFLOWS
    warm = len(resident) // 3
    for name, value in {
        "checkpoints": checkpoints,
        "overflows": health.overflows,
        "losses": health.losses,
        "evicted": steady.evicted,
        "writers killed": killed,
        "scouts killed": mischief.killed,
        "scouts": health.scout_restarts + 1,
        "mended": health.mended,
        "reconciles": health.reconciles,
        "shards": health.shards,
        "MiB after the warm-up": [round(size / 2**20, 1) for size in resident[warm :: max(1, warm // 5)]],
    }.items():
        record_property(name, value)
        print(f"{name}: {value}")
    assert max(resident[2 * warm :]) <= max(resident[warm : 2 * warm]) + GROWTH
