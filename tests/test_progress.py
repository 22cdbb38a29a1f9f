"""Embedders see how far the first scan is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nixl_index import GroupIndex, Layout, Progress
from nixl_index.group import Place
from nixl_index.link import Isolation
from nixl_index.logs import EventLog
from nixl_index.progress import REPORT_SECONDS, FirstScan
from nixl_index.records import Listing, Origin, Phase
from nixl_index.totals import Totals
from tests.support import DEADLINE, write, write_page

Watch = Callable[..., GroupIndex]
PAGES = 1_500
"""With two shards each: a stream of more bytes than one read takes, so that it is applied in several pieces."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    bases = [tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("disk")]
    for page in range(PAGES):
        write_page(bases, page, data=b"")
    return bases


def check(calls: list[Progress], shards: int, buckets: int) -> None:
    """What must hold for every scan that nothing interrupted."""
    assert [progress.done for progress in calls] == [False] * (len(calls) - 1) + [True]
    assert calls[-1].shards == shards
    assert calls[-1].buckets_done == calls[-1].buckets_known == buckets
    assert calls[-1].remaining == 0
    for earlier, later in pairwise(calls):
        assert earlier.shards <= later.shards
        assert earlier.buckets_done <= later.buckets_done
        assert earlier.buckets_known <= later.buckets_known
        assert earlier.seconds <= later.seconds
    for earlier, later in pairwise(calls[:-1]):
        assert later.seconds - earlier.seconds >= REPORT_SECONDS - 1e-6
    for progress in calls:
        assert progress.buckets_done <= progress.buckets_known
        assert progress.rate == pytest.approx(progress.shards / progress.seconds)


def test_every_scan_reports_and_ends_with_done(watch: Watch, pages: list[Path]) -> None:
    calls: list[Progress] = []
    threads = set()

    def on_progress(progress: Progress) -> None:
        calls.append(progress)
        threads.add(threading.current_thread())

    index = watch(*pages, on_progress=on_progress)
    assert len(calls) > 1
    check(calls, 2 * PAGES, sum(len(list(base.iterdir())) for base in pages))
    assert threading.current_thread() not in threads
    told = len(calls)
    index.rescan(timeout=DEADLINE)  # only the first scan is reported
    assert len(calls) == told


@pytest.mark.parametrize("pattern", ["", "*/[0-9a-f][0-9a-f]"])
def test_other_layouts(watch: Watch, bases: list[Path], pattern: str) -> None:
    for number in range(30):
        below = f"tenant{number % 3}/{number % 7:02x}" if pattern else "."
        write(bases[number % 2] / below / f"{number}_model")
    calls: list[Progress] = []
    watch(*bases, layout=Layout(pattern), on_progress=calls.append)
    check(calls, 30, len({path.parent for base in bases for path in base.rglob("*_model")}))
    assert all(progress.remaining is None for progress in calls[:-1] if pattern)


def test_empty_base(watch: Watch, bases: list[Path]) -> None:
    calls: list[Progress] = []
    watch(*bases, on_progress=calls.append)
    check(calls, 0, 0)


def test_it_is_called_without_the_lock_and_may_close_the_index(isolation: Isolation, pages: list[Path]) -> None:
    assigned, called = threading.Event(), threading.Event()
    opened: list[GroupIndex] = []

    def on_progress(progress: Progress) -> None:
        assigned.wait(DEADLINE)
        opened[0].touch(["nothing"])  # takes the lock
        opened[0].close()
        called.set()

    opened.append(GroupIndex.watch(*pages, isolation=isolation, block=False, on_progress=on_progress))
    assigned.set()
    assert called.wait(DEADLINE)
    assert opened[0].health().state == "closed"


def test_an_exception_is_logged_once_and_stops_nothing(
    watch: Watch, pages: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        calls.append(progress)
        raise RuntimeError("no")

    with caplog.at_level(logging.ERROR):
        index = watch(*pages, on_progress=on_progress)
    assert len(calls) > 1
    assert calls[-1].done
    assert index.shards == 2 * PAGES
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["nixl_index: on_progress failed"]


@pytest.mark.parametrize("wrong", [3, "print", True])
def test_bad_callback(bases: list[Path], isolation: Isolation, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"on_progress is {wrong!r}: give a function"):
        GroupIndex.watch(*bases, isolation=isolation, on_progress=wrong)


class Scan:
    """A first scan by hand, over so many bases, with a clock."""

    def __init__(self, bases: int, depth: int = 1) -> None:
        self.calls: list[Progress] = []
        self.now = 100.0
        self.totals = Totals()
        self.places: list[Place] = []
        self.bases = [SimpleNamespace(frozen="") for _ in range(bases)]
        self.scan = FirstScan(
            self.calls.append, EventLog(""), self.totals, self.places, self.bases, depth, lambda: self.now
        )

    def know(self, base: int, buckets: int) -> None:
        for _ in range(buckets):
            self.totals.add_directory(base)
            self.places.append(Place(base, "", "", ""))

    def list(self, *directories: int) -> None:
        for directory in directories:
            self.scan.on_listing(Listing(directory, Phase.BEGIN, Origin.SCAN, 0))
            self.totals.add(directory, 512)
            self.totals.add(directory, 512)
            self.scan.on_listing(Listing(directory, Phase.DONE, Origin.SCAN, 0))

    def report(self, now: float) -> Progress:
        self.now = now
        self.scan.report()
        return self.calls[-1]


def test_the_estimate_is_none_until_a_bucket_is_done() -> None:
    scan = Scan(1)
    assert scan.report(100.0).remaining is None
    scan.know(0, 10)
    assert scan.report(101.0).remaining is None
    scan.list(0, 1)
    assert scan.report(104.0) == Progress(4, 2, 10, 4.0, 1.0, pytest.approx(16.0), False)


def test_bases_to_come_count_as_those_that_were_begun() -> None:
    scan = Scan(4)
    scan.know(0, 10)
    scan.list(0)
    assert scan.report(101.0).remaining == pytest.approx(39.0)
    scan.bases[3].frozen = "gone"  # nothing of it is listed
    assert scan.report(102.0).remaining == pytest.approx(58.0)
    scan.know(2, 10)  # nothing is in base 1
    assert scan.report(103.0).remaining == pytest.approx(57.0)


def test_no_estimate_with_levels_above_the_buckets() -> None:
    scan = Scan(1, depth=2)
    scan.know(0, 10)
    scan.list(0)
    assert scan.report(101.0).remaining is None


def test_a_scan_that_starts_again_counts_its_buckets_again() -> None:
    scan = Scan(1)
    scan.know(0, 2)
    scan.list(0, 1)
    scan.scan.restart()
    assert scan.report(101.0).buckets_done == 0


def test_a_directory_that_cannot_be_listed_is_done_too() -> None:
    scan = Scan(1)
    scan.know(0, 1)
    scan.scan.on_listing(Listing(0, Phase.UNKNOWN, Origin.SCAN, 0))
    assert scan.report(101.0).buckets_done == 1
