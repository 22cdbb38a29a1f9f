"""FAILURES 36-37: who evicts is killed in the middle of a group, or is not alone."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nixl_index import Cleaner, Eviction, Evictor, GroupIndex
from nixl_index.volumes import LOCK_NAME
from tests.mounts import Mounts
from tests.provoke import ROOT, held
from tests.support import DEADLINE, audit, eventually, on_disk, page_key, write, write_page

Watch = Callable[..., GroupIndex]

_EVICTS = """
import sys
from nixl_index import Evictor, GroupIndex
index = GroupIndex.watch(*sys.argv[1:])
print(index.health().scout_pid, flush=True)
Evictor(index).evict_oldest(timeout=None)
"""
_HOLDS_THE_LOCK = """
import sys, threading
from nixl_index import Cleaner, GroupIndex
index = GroupIndex.watch(*sys.argv[1:])
assert not Cleaner(index)._lock(problems := [])
assert not problems
print(index.health().scout_pid, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as made:
        yield made


@contextmanager
def another(code: str, *bases: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A host of its own that runs this code: its process, and its scout's id, once it is as far as to tell it."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, bases)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def _waits_for_the_disk(pid: int) -> bool:
    """Does it hang in a system call that no signal ends?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    except FileNotFoundError:
        return False


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _one_here_seven_there(bases: list[Path]) -> list[Path]:
    """A group with a shard on the first base, and the others on the second."""
    return [write(bases[rank > 0] / f"0{rank}" / f"a_m_{rank}_8", b"x", 1_000) for rank in range(8)]


def test_f36_the_scout_is_killed_in_the_middle_of_a_group(
    bases: list[Path], mounts: Mounts, process_watch: Watch
) -> None:
    """A frozen file system holds it between two shards. What is left is still the oldest group: its successor does the
    rest at once, or leaves it to the next eviction, until it knows the directories. Nothing is torn for long."""
    mounts.mount(mounts.device("slow"), bases[1])
    paths = _one_here_seven_there(bases)
    write(bases[0] / "00" / "b_m", b"x", 2_000)
    index = process_watch(*bases)
    results: list[Eviction] = []
    thread = threading.Thread(target=lambda: results.append(Evictor(index).evict_oldest(timeout=DEADLINE)))
    pid = index.health().scout_pid
    with mounts.frozen(bases[1]):
        thread.start()
        eventually(lambda: _waits_for_the_disk(pid), "the scout hangs in an unlink")
        os.kill(pid, signal.SIGKILL)
    thread.join()
    eventually(lambda: index.health().state == "live", "the index is whole again")
    assert index.health().scout_restarts == 1
    audit(index, bases)
    if "a_m" in index:
        assert [group.key for group in index.torn()] == ["a_m"]
        (again,) = Evictor(index).evict_oldest().evicted
        assert (again.key, again.shards < 8) == ("a_m", True), "the first ones were unlinked by the scout that died"
    assert not any(path.exists() for path in paths)
    audit(index, bases)


def test_f36_commands_while_the_scout_is_replaced(process_watch: Watch, bases: list[Path]) -> None:
    """Whoever asks meanwhile, as a cleaner does that ticks early, does not stop the next scout before it is set up."""
    write_page(bases, 0)
    index = process_watch(*bases)
    os.kill(index.health().scout_pid, signal.SIGKILL)

    def is_back() -> bool:
        with suppress(TimeoutError):
            index.sync(0.001)
        return index.health().scout_restarts > 0 and index.health().state == "live"

    eventually(is_back, "the index is whole again")
    audit(index, bases)
    assert index.health().scout_restarts == 1
    assert index.health().last_error == "the scout: it ended"


def test_f36_the_host_is_killed_in_the_middle_of_a_group(bases: list[Path], mounts: Mounts, watch: Watch) -> None:
    """Its scout too. What is left of the group is found by the next start, known as torn, and evicted in its turn."""
    mounts.mount(mounts.device("slow"), bases[1])
    paths = _one_here_seven_there(bases)
    write(bases[0] / "00" / "b_m", b"x", 2_000)
    with mounts.frozen(bases[1]), another(_EVICTS, *bases) as (host, scout):
        eventually(lambda: _waits_for_the_disk(scout), "the scout hangs in an unlink")
        host.kill()
        os.kill(scout, signal.SIGKILL)
    eventually(lambda: _has_ended(scout), "the scout is dead")
    left = [path for path in paths if path.exists()]
    assert 0 < len(left) < 8
    index = watch(*bases)
    assert [group.key for group in index.torn()] == ["a_m"]
    (gone,) = Evictor(index).evict_oldest().evicted
    assert (gone.key, gone.shards) == ("a_m", len(left))
    assert not any(path.exists() for path in paths)


def _cleaner(index: GroupIndex, **options: object) -> Cleaner:
    """One that has something to do whatever is on the volume: the cache is as large as it may be."""
    return Cleaner(index, 80, 70, capacity=index.nbytes, **options)  # type: ignore[arg-type]


def test_f37_two_evictors_on_one_base(watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """The second says who has the lock, once, and evicts nothing; when the holder is killed, it takes over."""
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    cleaner = _cleaner(index)
    with another(_HOLDS_THE_LOCK, *bases) as (holder, scout):
        for _ in range(3):
            assert not cleaner.tick()
        who = rf"process ({holder.pid}|{scout}) on .* holds its lock"
        for base in bases:
            said = re.findall(
                rf"nothing is evicted from {re.escape(repr(str(base)))}: {who}", cleaner.health().last_error
            )
            assert len(said) == 1
        assert len(index) == 10
        warnings = [record.getMessage() for record in caplog.records if str(bases[0]) in record.getMessage()]
        assert len([text for text in warnings if text.startswith("nixl_index: nothing is evicted from")]) == 1
        holder.send_signal(signal.SIGKILL)
        evicted: list[str] = []

        def takes_over() -> bool:
            evicted.extend(group.key for group in cleaner.tick().evicted)
            return bool(evicted)

        eventually(takes_over, "it takes over")
    assert evicted == [page_key(page) for page in range(3)]
    assert cleaner.health().last_error == ""


def test_f37_a_base_of_which_another_has_the_lock_is_left_alone(watch: Watch, bases: list[Path]) -> None:
    """Of the other base it evicts all the same, and of that one alone."""
    for number in range(10):
        write(bases[number % 2] / "00" / f"{number}_m", b"x" * 4096, 1_000 + number)
    index = watch(*bases)
    cleaner = _cleaner(index)
    with another(_HOLDS_THE_LOCK, bases[0]):
        eviction = cleaner.tick()
    assert [group.key for group in eviction.evicted] == ["1_m", "3_m", "5_m"]
    assert str(bases[0]) in cleaner.health().last_error
    assert len(list(bases[0].glob("00/*"))) == 5


def _is_free(base: Path) -> bool:
    with open(base / os.fsdecode(LOCK_NAME), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_f37_the_lock_is_let_go_after_each_tick(bases: list[Path], mounts: Mounts, watch: Watch) -> None:
    """So the mount is never busy for longer, and another process has its turn."""
    mounts.mount("tmpfs", bases[0])
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    assert _cleaner(index).tick()
    for base in bases:
        eventually(lambda base=base: _is_free(base), "the lock is free")  # type: ignore[misc]
    assert len(on_disk(bases)) == index.shards, "the lock file is no shard"
    index.close()
    mounts.unmount(bases[0])


def test_f37_the_lock_is_let_go_after_a_tick_that_failed(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scout does not answer in time, and takes the lock when nobody waits for it any more."""
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    cleaner = _cleaner(index)
    volumes = cleaner.measure([])
    monkeypatch.setattr(cleaner, "measure", lambda problems: volumes)
    monkeypatch.setattr("nixl_index.cleaner._ANSWER_SECONDS", 0.05)
    with held(index), pytest.raises(TimeoutError, match="lock"):
        cleaner.tick()
    index.sync(DEADLINE)
    for base in bases:
        eventually(lambda base=base: _is_free(base), "the lock is free")  # type: ignore[misc]


def test_f37_two_cleaners_at_once_tear_nothing(watch: Watch, bases: list[Path]) -> None:
    """Each keeps the other out, or what the other unlinked is fine: in the end no group is torn."""
    for page in range(60):
        write_page(bases, page, ranks=4)
    mine, theirs = watch(*bases), watch(*bases)
    cleaners = [Cleaner(index, 80, 70, capacity=mine.nbytes) for index in (mine, theirs)]
    threads = [threading.Thread(target=cleaner.tick) for cleaner in cleaners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit(mine, bases)
    audit(theirs, bases)
    left = sorted(int(page) for page in range(60) if page_key(page) in mine)
    assert left == list(range(60 - len(left), 60))
    assert not list(mine.torn())
    assert 60 * 2 // 3 - 20 <= len(left) <= 42
