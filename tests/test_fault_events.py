"""FAILURES 1-3: the queue overflows. It is never silent, and the index is the disk again after the reconcile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, emitter, link, looks, records
from nixl_index.evict import Eviction
from nixl_index.tree import Tree
from tests.provoke import flood, held, reader_stands_still, settle_at_once
from tests.support import DEADLINE, audit, eventually, page_key, page_names, write, write_page

Watch = Callable[..., GroupIndex]


# --- 1: the queue overflows ---


def test_f01_overflow_is_mended(watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """All that can happen to a shard happens while the queue is full."""
    pages = [write_page(bases, page) for page in range(6)]
    index = watch(*bases)
    settle_at_once(index)
    with held(index):
        flood(pages[5][0].parent)
        pages[0][0].unlink()
        for path in pages[1]:
            path.unlink()
        os.utime(pages[2][0], (1, 1))
        pages[3][0].rename(pages[3][0].with_name(page_names(7)[0]))
        write_page(bases, 8)
        write(bases[0] / "new" / "ignored_m")
        (bases[0] / "new").rename(bases[0] / "ff")
    index.sync(DEADLINE)
    audit(index, bases)
    assert page_key(1) not in index
    assert "ignored_m" in index
    health = index.health()
    assert (health.overflows, health.losses, health.reconciles, health.state) == (1, 1, 1, "live")
    assert health.last_error == records.OVERFLOW
    assert caplog.text.count(records.OVERFLOW) == 1
    known = 6  # 3 go, 1 is touched, 2 for the rename; and 3 come in buckets that are new
    eventually(lambda: index.health().mended >= known, "what the reconcile found counts as mended")
    assert index.health().mended <= known + 3


def test_f01_what_was_rewritten_unseen_is_not_evicted(watch: Watch, bases: list[Path]) -> None:
    """The index takes page 0 for the oldest; that it was rewritten is lost."""
    pages = [write_page(bases, page) for page in range(3)]
    index = watch(*bases)
    found: list[Eviction] = []
    evictor = threading.Thread(target=lambda: found.append(Evictor(index).evict_oldest()))
    with held(index):
        flood(pages[2][0].parent)
        os.utime(pages[0][1])
        evictor.start()
        eventually(lambda: index._follower.asks._waiting, "the scout is asked to evict")
    evictor.join(DEADLINE)
    assert [group.key for group in found[0].evicted] == [page_key(1)]
    assert [group.key for group in found[0].skipped] == [page_key(0)]
    assert all(path.exists() for path in pages[0])
    index.sync(DEADLINE)
    assert index.health().overflows == 1
    assert [group.key for group in index] == [page_key(2), page_key(0)]


# --- 2: and once more, while everything is listed ---


def test_f02_overflow_during_a_reconcile(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Held in the middle of its listings, at a known place: in a thread."""
    pages = [write_page(bases, page) for page in range(100)]
    step, steps, half, go_on = Tree.step, iter(range(10**9)), threading.Event(), threading.Event()

    def wait_half_way(tree: Tree) -> None:
        if next(steps) == 50:
            half.set()
            go_on.wait()
        step(tree)

    with GroupIndex.watch(*bases, isolation="thread") as index:
        try:
            with held(index):
                flood(pages[0][0].parent)
                monkeypatch.setattr(Tree, "step", wait_half_way)
            assert half.wait(DEADLINE)
            eventually(lambda: index.health().state == "degraded", "the loss is known")
            assert len(index) == 100
            assert index.oldest() == index[page_key(0)]
            flood(pages[0][0].parent)
            for path in (path for page in pages[::2] for path in page):
                path.unlink()
            for page in range(100, 150):
                write_page(bases, page)
            with pytest.raises(TimeoutError):
                index.sync(0.01)
        finally:
            go_on.set()
        audit(index, bases)
        assert len(index) == 100
        health = index.health()
        assert (health.overflows, health.losses, health.state) == (2, 2, "live")


def test_f02_overflow_during_a_reconcile_of_a_process(process_watch: Watch, bases: list[Path]) -> None:
    """Where the signal finds the scout is not certain, so this tries until it was in the middle."""
    for page in range(1_000):
        write_page(bases, page)
    for bucket in (base / f"{number:02x}" for base in bases for number in range(256)):
        bucket.mkdir(exist_ok=True)
    bucket = bases[0] / "00"
    index = process_watch(*bases)
    for attempt in range(10):
        before = index.health()
        with held(index):
            flood(bucket)
        eventually(lambda overflows=before.overflows: index.health().overflows > overflows, "the loss is known")
        with held(index):
            eventually(lambda: index.health().queued_bytes == 0, "what was told is known")
            during = index.health().state == "degraded"
            flood(bucket)
            for page in range(attempt * 20, attempt * 20 + 20):
                for path in index[page_key(page)].paths:
                    os.unlink(path)
                write_page(bases, 1_000 + page)
        audit(index, bases)
        assert index.health().overflows == before.overflows + 2
        if during:
            break
    else:
        pytest.fail("the reconcile was over each time")


# --- 3: the writer is faster than the reader ---


LONG = "x" * 240


def test_f03_writer_faster_than_reader(watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the host is bounded; the rest waits in the scout, and nothing is lost."""
    monkeypatch.setattr(emitter, "MAX_QUEUED", 1 << 16)
    monkeypatch.setattr(link, "PIPE_BYTES", 1 << 12)
    code = """if True:
        import os, sys
        for number in range(2_000):
            os.close(os.open(f"{sys.argv[1]}/{number}{sys.argv[2]}_m", os.O_CREAT | os.O_WRONLY))
    """
    (bases[0] / "00").mkdir()
    index = watch(*bases)
    with reader_stands_still(index):
        subprocess.run([sys.executable, "-c", code, bases[0] / "00", LONG], check=True, timeout=DEADLINE)
        eventually(lambda: index.health().queued_bytes >= 1 << 16, "the queue is full")
        assert index.health().queued_bytes <= (1 << 16) + (1 << 18)
        assert index.health().oldest_unhandled > 0
    audit(index, bases)
    assert len(index) == 2_000
    health = index.health()
    assert (health.losses, health.state) == (0, "live")
    eventually(lambda: index.health().queued_bytes == 0, "everything was handled")


def test_f03_what_waits_in_the_scout_is_bounded(
    bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the bound it is a loss like any other. In a thread, where the bound can be had lower."""
    monkeypatch.setattr(emitter, "MAX_QUEUED", 1 << 16)
    monkeypatch.setattr(looks, "MAX_DIRTY", 500)
    (bases[0] / "00").mkdir()
    with GroupIndex.watch(*bases, isolation="thread") as index:
        with reader_stands_still(index):
            for number in range(3_000):
                (bases[0] / "00" / f"{number}{LONG}_m").touch()
            for number in range(0, 3_000, 2):
                (bases[0] / "00" / f"{number}{LONG}_m").unlink()
        audit(index, bases)
        assert len(index) == 1_500
        health = index.health()
        assert health.losses >= 1
        assert health.reconciles >= 1
        assert health.state == "live"
        assert "the host reads too slowly" in caplog.text
