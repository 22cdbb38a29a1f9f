"""Exceptions in callbacks and in our own code, and interrupted threads: FAILURES 44 and 45."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nixl_index import Evictor, FailedError, GroupIndex, KeyScheme, records
from tests.support import DEADLINE, audit, eventually, page_key, write, write_page
from tests.turmoil import SPARE, overflowing, writers

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


# --- 44: exceptions in callbacks ---


class _Sulky:
    """A key scheme that raises for some names."""

    def __init__(self, error: BaseException, times: int = 10**9) -> None:
        self.error = error
        self.left = times
        self._scheme = KeyScheme()

    def __call__(self, name: str) -> str | None:
        if "sulk" in name and self.left:
            self.left -= 1
            raise self.error
        return self._scheme(name)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyError("no"), RecursionError("no"), MemoryError("no")])
def test_f44_a_scheme_that_raises(
    watch: Watch, bases: list[Path], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Its names are ignored, and said once; all others are kept, and nothing of the ignored is evicted."""
    kept = [write(bases[0] / "00" / f"sulk{n}_m") for n in range(5)]
    index = watch(*bases, scheme=_Sulky(error))
    write_page(bases, 0)
    kept += [write(bases[0] / "01" / f"sulk{n}_m") for n in range(5)]
    index.sync(DEADLINE)
    assert [group.key for group in index] == [page_key(0)]
    health = index.health()
    assert health.state == "live"
    assert health.ignored >= 10
    assert "no" in health.last_error
    assert caplog.text.count("the key scheme failed") == 1
    assert len(Evictor(index).evict_oldest(100).evicted) == 1
    assert all(path.exists() for path in kept)
    index.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_f44_a_scheme_that_wants_to_end_the_thread(watch: Watch, bases: list[Path], error: BaseException) -> None:
    index = watch(*bases, scheme=_Sulky(error, 1))
    write(bases[0] / "01" / "sulk_m")
    write_page(bases, 0)
    index.sync(DEADLINE)
    audit(index, bases)
    assert sorted(group.key for group in index) == sorted([page_key(0), "sulk_m"])
    assert index.health().state == "live"
    assert index.health().last_error


def test_f44_neither_scheme_nor_log_is_called_under_the_lock(watch: Watch, bases: list[Path]) -> None:
    """Either may ask the index something; whoever holds the lock would wait for itself."""
    locked: list[bool] = []
    indexes: list[GroupIndex] = []

    def note() -> None:
        for index in indexes:
            locked.append(index._follower.lock.locked())

    def scheme(name: str) -> str | None:
        note()
        if "sulk" in name:
            raise RuntimeError("no")
        return name

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note()

    handler = Handler()
    logging.getLogger("nixl_index").addHandler(handler)
    try:
        indexes.append(watch(*bases, scheme=scheme))
        write(bases[0] / "01" / "a_m")
        write(bases[0] / "01" / "sulk_m")
        indexes[0].sync(DEADLINE)
        (bases[0] / "01" / "a_m").unlink()
        indexes[0].sync(DEADLINE)
        indexes[0].close()  # `audit` knows no names that a scheme ignores
    finally:
        logging.getLogger("nixl_index").removeHandler(handler)
    assert locked
    assert not any(locked)


def _raising(index: GroupIndex, kind: type, times: int) -> list[int]:
    """Have the handler of these records raise so many times. Returns a list that counts."""
    handlers: dict[Any, Callable[[Any], None]] = index._follower._handlers
    handler, raised = handlers[kind], [0]

    def fail(message: Any) -> None:
        if raised[0] < times:
            raised[0] += 1
            raise RuntimeError("out of luck")
        handler(message)

    handlers[kind] = fail
    return raised


@pytest.mark.parametrize(
    "kind",
    [
        *(records.Shards, records.Gone, records.Directory, records.Listing, records.Sweep, records.Status),
        *(records.Done, records.Evicted, records.Crawled, records.Lost),
    ],
)
def test_f44_an_exception_of_ours_once(
    watch: Watch, bases: list[Path], kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    """On the writer's thread, in each of its handlers: no call hangs, no eviction is lost, and the index is whole."""
    pages = [write_page(bases, page) for page in range(10)]
    (bases[0] / SPARE).mkdir(exist_ok=True)
    index = watch(*bases)
    raised = _raising(index, kind, 1)
    for page in range(10, 20):
        write_page(bases, page)
    pages[9][0].unlink()
    if kind is records.Lost:
        with overflowing(index, bases[0]):
            write_page(bases, 20)
    elif kind is records.Crawled:
        index.rescan(timeout=DEADLINE)
        os.kill(index.health().scout_pid, 9) if index.health().scout_pid else index._observer.replace("by the test")
        eventually(lambda: index.health().scout_restarts >= 1, "another scout runs")
    elif kind is records.Status:
        write(bases[1] / "98" / "a_m")
    eviction = Evictor(index).evict_oldest(3, timeout=DEADLINE)
    assert [group.key for group in eviction.evicted] == [page_key(page) for page in range(3)]
    index.sync(DEADLINE)
    index.rescan(timeout=DEADLINE)
    assert raised == [1]
    assert not index._follower.order._held
    audit(index, bases)
    assert not index.audit(DEADLINE)
    health = index.health()
    assert health.state == "live"
    assert health.losses >= 1
    assert "out of luck" in caplog.text


def test_f44_an_exception_of_ours_always(watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """It does not help to begin anew: the index fails, and every call that would lie says why."""
    write_page(bases, 0)
    index = watch(*bases)
    group = index.oldest()
    assert group is not None
    _raising(index, records.Shards, 10**9)
    kept = write_page(bases, 1)
    with pytest.raises(FailedError, match="out of luck"):
        index.sync(DEADLINE)
    health = index.health()
    assert health.state == "failed"
    assert "out of luck" in health.last_error
    calls: list[Callable[[], object]] = [
        *(index.sync, index.rescan, index.audit, index.wait_ready, index.oldest, index.pop_oldest),
        *(lambda: len(index), lambda: list(index), lambda: "x" in index, lambda: index["x"]),
        *(lambda: index.nbytes, lambda: index.shards, lambda: index.restore(group)),
        *(lambda: Evictor(index).evict_oldest(), lambda: Evictor(index).evict_bytes(1)),
    ]
    for call in calls:
        with pytest.raises(FailedError, match="out of luck"):
            call()
    assert "out of luck" in caplog.text
    assert all(path.exists() for path in kept)
    index.close()
    assert index.health().state == "closed"


# --- 45: threads that something ends ---


def _interrupt(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread, wherever it is."""
    assert thread.ident
    changed = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    assert changed == 1


@pytest.mark.parametrize("which", ["emitter", "observer"])
def test_f45_a_thread_that_is_interrupted(watch: Watch, bases: list[Path], which: str) -> None:
    """While it waits, and while it works: it goes on, everything is listed again, and every call is answered."""
    index = watch(*bases)
    thread = index._observer if which == "observer" else index._observer.emitter
    assert thread
    with writers(2, bases) as started:
        for turn in range(6):
            before = index.health().losses
            if turn % 2:
                for writer in started:
                    writer.go(300)
            _interrupt(thread)
            write(bases[0] / "01" / f"page{turn}_m")  # wakes it: the exception comes with its next instruction
            index.sync(DEADLINE)
            eventually(lambda before=before: index.health().losses > before, "the loss is noticed")  # type: ignore[misc]
            assert not turn % 2 or all(writer.rests() for writer in started)
            audit(index, bases)
    assert thread.is_alive()
    assert index.health().state == "live"
    assert len(Evictor(index).evict_oldest(10**6).evicted) > 0


def test_f45_the_scout_thread_is_interrupted(bases: list[Path]) -> None:
    with GroupIndex.watch(*bases, isolation="thread") as index:
        emitter = index._observer.emitter
        assert emitter
        assert emitter._link
        assert emitter._link._thread
        _interrupt(emitter._link._thread)
        write(bases[0] / "01" / "a_m")
        index.sync(DEADLINE)
        eventually(lambda: index.health().scout_restarts == 1, "another scout runs")
        audit(index, bases)
