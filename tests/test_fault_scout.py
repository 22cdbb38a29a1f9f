"""A scout that dies, stops, fails, talks garbage, or cannot be started: FAILURES 45, and 33 and 36 with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Eviction, Evictor, GroupIndex, emitter, records, wire
from nixl_index.link import Link
from tests.support import DEADLINE, audit, eventually, page_key, write, write_page
from tests.turmoil import held

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


def link_of(index: GroupIndex) -> Link:
    """The link to the scout that runs now."""
    found = index._observer.emitter
    assert found
    eventually(lambda: found._link is not None, "a scout runs")
    assert found._link
    return found._link


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def replaced(index: GroupIndex, bases: list[Path], restarts: int = 1) -> None:
    """There was a replacement, and everything that happened meanwhile is known."""
    eventually(lambda: index.health().scout_restarts >= restarts, "another scout runs")
    audit(index, bases)
    health = index.health()
    assert health.state == "live"
    assert health.losses >= restarts
    assert health.last_error


def _kill(index: GroupIndex) -> int:
    pid = index.health().scout_pid
    if pid:
        os.kill(pid, signal.SIGKILL)
    return pid


def change(bases: list[Path], page: int) -> None:
    """What no event tells: a shard that comes and one that goes, in a bucket that is known and in a new one."""
    first, second = write_page(bases, page)
    first.unlink()
    write(second.with_name(f"other{page}_m"))


def test_f45_sigkill_again_and_again(
    process_watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Buckets appear meanwhile: their numbers must stay the same to both ends."""
    monkeypatch.setattr("nixl_index.logs.SECONDS", 0.0)
    index = process_watch(*bases)
    pids = set()
    for turn in range(4):
        eventually(lambda: index.health().scout_pid, "a scout runs")
        for page in range(100 * turn, 100 * turn + 50):
            change(bases, page)
        pids.add(_kill(index))
        for page in range(100 * turn + 50, 100 * turn + 100):
            change(bases, page)
        eventually(lambda turn=turn: index.health().scout_restarts > turn, "another scout runs")  # type: ignore[misc]
    replaced(index, bases, 4)
    assert len(pids) == 4
    assert all(_gone(pid) for pid in pids)
    assert caplog.text.count("the scout is replaced") == 4


def test_f45_killed_while_it_starts(process_watch: Watch, bases: list[Path]) -> None:
    """A scout that dies before it has said anything is one that cannot be started: a thread takes over, or another
    process; the index is whole either way."""
    write_page(bases, 0)
    index = process_watch(*bases)
    first = _kill(index)
    eventually(lambda: index.health().scout_pid not in (0, first), "another scout is being started")
    _kill(index)
    change(bases, 1)
    replaced(index, bases)
    assert not list(Path(f"/proc/{first}").glob("fd"))


def test_f45_calls_while_no_scout_runs(process_watch: Watch, bases: list[Path]) -> None:
    """Commands given while a scout starts wait for it: none goes ahead of its configuration, none is forgotten."""
    for page in range(50):
        write_page(bases, page)
    index = process_watch(*bases)
    stop, errors, synced = threading.Event(), [], [0]

    def call(seconds: float) -> None:
        while not stop.is_set():
            try:
                index.sync(seconds)
                synced[0] += 1
            except TimeoutError:
                if seconds == DEADLINE:
                    raise
            except Exception as error:  # noqa: BLE001 - the test looks at them
                errors.append(error)

    # Who waits for ever gives no new command; who gives up soon gives many of them while a scout starts.
    threads = [threading.Thread(target=call, args=(seconds,)) for seconds in (DEADLINE, 0.005, 0.01)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(3):
            _kill(index)
            eventually(lambda turn=turn: index.health().scout_restarts == turn + 1, "another scout runs")  # type: ignore[misc]
            before = synced[0]
            eventually(lambda before=before: synced[0] > before + 3, "calls are answered")  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    replaced(index, bases, 3)
    assert index.health().scout_restarts == index.health().losses == 3  # no scout failed for what it was told too early
    assert index.health().isolation == "process"


def _evict_in_thread(index: GroupIndex, count: int) -> Callable[[], Eviction]:
    """Start an eviction; what is returned waits for its result."""
    results: list[Eviction | BaseException] = []

    def evict() -> None:
        try:
            results.append(Evictor(index).evict_oldest(count, timeout=2 * DEADLINE))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=evict)
    thread.start()

    def result() -> Eviction:
        thread.join()
        assert isinstance(results[0], Eviction), results
        return results[0]

    return result


def test_f45_an_eviction_that_the_scout_had_not_begun(process_watch: Watch, bases: list[Path]) -> None:
    """Its successor does it: once, all of it, and no more."""
    pages = [write_page(bases, page) for page in range(40)]
    index = process_watch(*bases)
    pid = index.health().scout_pid
    os.kill(pid, signal.SIGSTOP)
    result = _evict_in_thread(index, 30)
    eventually(lambda: index._follower.asks._waiting, "the command is sent")
    os.utime(pages[3][0], (1_800_000_000, 1_710_000_000))  # rewritten since it was popped: no longer among the oldest
    os.kill(pid, signal.SIGKILL)
    eviction = result()
    assert [group.key for group in eviction.evicted] == [page_key(page) for page in range(31) if page != 3]
    assert all(group.shards == 2 for group in eviction.evicted)
    assert [group.key for group in eviction.skipped] == [page_key(3)]
    assert not any(path.exists() for page in range(31) for path in pages[page] if page != 3)
    assert all(path.exists() for page in (3, *range(31, 40)) for path in pages[page])
    assert not index._follower.order._held
    replaced(index, bases)


def test_f36_killed_again_and_again_in_a_long_eviction(process_watch: Watch, bases: list[Path]) -> None:
    """Each group is told as evicted exactly once, and nothing of it is left, whenever the scout died."""
    pages = [write_page(bases, page) for page in range(1_500)]
    index = process_watch(*bases)
    result = _evict_in_thread(index, 1_400)
    for turn in range(3):
        count = len(index)
        eventually(lambda count=count: len(index) < count - 64, "it goes on")  # type: ignore[misc]
        _kill(index)
        eventually(lambda turn=turn: index.health().scout_restarts > turn, "another scout runs")  # type: ignore[misc]
    eviction = result()
    assert [group.key for group in eviction.evicted] == [page_key(page) for page in range(1_400)]
    assert not eviction.failed
    assert sum(group.shards for group in eviction.evicted) <= 2_800
    assert not any(path.exists() for paths in pages[:1_400] for path in paths)
    assert all(path.exists() for paths in pages[1_400:] for path in paths)
    assert not index._follower.order._held
    replaced(index, bases, 3)


def test_f45_a_stopped_scout_is_seen_and_replaced(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP, or a thread that hangs: it gives no sign of life, and no call of the host waits for ever."""
    monkeypatch.setattr(emitter, "PING_SECONDS", 0.1)
    monkeypatch.setattr(emitter, "STALL_SECONDS", 1.0)
    write_page(bases, 0)
    index = watch(*bases)
    pid = index.health().scout_pid
    with held(index):
        change(bases, 1)
        with pytest.raises(TimeoutError, match="sync"):
            index.sync(0.05)
        assert index.oldest() is not None
        index.sync(DEADLINE)  # answered by the next one
        assert page_key(1) in index
        assert index.health().scout_restarts == 1
    assert "no sign of life" in caplog.text
    assert not pid or _gone(pid)
    replaced(index, bases)


def test_f45_a_scout_that_works_long_is_not_taken_for_dead(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one whose stream the host does not read for longer than that."""
    monkeypatch.setattr(emitter, "PING_SECONDS", 0.1)
    monkeypatch.setattr(emitter, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(emitter, "MAX_QUEUED", 1_000)
    index = watch(*bases)
    with index._follower.lock:
        for page in range(200):
            write_page(bases, page)
        eventually(lambda: index.health().oldest_unhandled > 2, "the index does not read")
        assert index.health().queued_bytes >= 1_000
    audit(index, bases)
    assert len(index) == 200
    assert index.health().scout_restarts == index.health().losses == 0


def test_f45_an_exception_in_the_scout_thread(
    bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with GroupIndex.watch(*bases, isolation="thread") as index:
        scout = link_of(index)._scout
        assert scout
        assert scout._tree

        def fail() -> None:
            raise RuntimeError("out of luck")

        monkeypatch.setattr(scout._tree, "drain", fail)
        change(bases, 1)
        replaced(index, bases)
        assert "out of luck" in caplog.text
        assert "RuntimeError" in caplog.text


@pytest.mark.parametrize(
    "command",
    [
        b"garbage where a command should be",
        wire.encode(records.Hello(1, 1)),  # no command
        wire.encode(records.Look(0, [4_711], [b"name"])),  # no such directory
        wire.encode(records.Crawled(0)),  # a record of the stream
    ],
)
def test_f45_an_exception_in_the_scout(
    watch: Watch, bases: list[Path], command: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A real one, in the process as well: a command that it cannot obey. It says what was wrong before it ends."""
    write_page(bases, 0)
    index = watch(*bases)
    link_of(index).send(command)
    change(bases, 1)
    replaced(index, bases)
    assert "the scout failed" in caplog.text
    assert "Error" in caplog.text
    assert index.health().losses == 1
