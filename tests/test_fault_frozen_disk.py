"""A disk that hangs (FAILURES 19's worse sister): a frozen file system answers every look, and an unlink on it waits in
the kernel, through a SIGKILL, until the thaw. It stops a scout; it stops neither the host nor the other disks."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index import Evictor, FrozenError, GroupIndex, emitter
from nixl_index.link import Isolation
from tests.mounts import Mounts
from tests.support import DEADLINE, audit, eventually, on_disk, write

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as made:
        yield made


@pytest.fixture
def disk(mounts: Mounts, tmp_path: Path) -> Path:
    """A base dir that can hang, with the oldest group, and half of another."""
    made = mounts.mount(mounts.device("disk"), tmp_path / "disk")
    write(made / "00" / "a_m_0_2", b"x", 1_000)
    write(made / "ab" / "a_m_1_2", b"x", 1_000)
    write(made / "ab" / "b_m_0_2", b"x", 2_000)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A base dir that cannot."""
    write(tmp_path / "other" / "00" / "b_m_1_2", b"x", 2_000)
    write(tmp_path / "other" / "ab" / "c_m", b"x", 3_000)
    return tmp_path / "other"


def hang(index: GroupIndex) -> threading.Thread:
    """Have the scout unlink something on the disk that hangs. The call that asked for it waits for an answer."""
    evicting = threading.Thread(target=Evictor(index).evict_oldest, args=(1, 3 * DEADLINE))
    evicting.start()
    eventually(lambda: index._follower.asks._waiting, "the eviction is under way")
    with pytest.raises(TimeoutError):
        index.sync(0.5)  # else the disk does not hang
    return evicting


def test_a_disk_that_hangs_stops_a_scout_alone(
    mounts: Mounts,
    disk: Path,
    other: Path,
    watch: Watch,
    isolation: Isolation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(emitter, "STALL_SECONDS", 3.0)
    index = watch(disk, other)
    pid = index.health().scout_pid
    with mounts.frozen(disk):
        evicting = hang(index)
        for call in (index.rescan, index.audit, Evictor(index).evict_oldest):
            with pytest.raises(TimeoutError):
                call(timeout=0.1)
        assert index.health().scout_restarts == 0
        assert "c_m" in index  # what needs no scout answers as ever
        assert [group.key for group in index if group.key == "c_m"]

        eventually(lambda: index.health().scout_restarts == 1, "the scout is replaced")
        evicting.join(DEADLINE)
        assert not evicting.is_alive()  # it has its answer, and took the next group, which is on the other disk
        health = index.health()
        assert health.state == "frozen"
        assert health.frozen == {str(disk): "its disk hangs"}
        assert health.isolation == isolation
        assert health.scout_pid != pid or isolation == "thread"
        assert re.search(f"no sign of life for .*{re.escape(str(disk))}.*left behind", caplog.text)
        write(other / "00" / "d_m", b"x", 4_000)
        with pytest.raises(FrozenError, match=re.escape(repr(str(disk)))):
            index.sync(DEADLINE)
        assert index["a_m"].paths == (str(disk / "00" / "a_m_0_2"), str(disk / "ab" / "a_m_1_2"))
        assert "d_m" in index
        eviction = Evictor(index).evict_oldest(9, DEADLINE)
        assert {"d_m"} <= {group.key for group in eviction.evicted} <= {"b_m", "c_m", "d_m"}
        assert not on_disk([other])
        assert len(on_disk([disk])) == 3
        assert index.pop_oldest() is None
        assert index.shards == 3
        write(other / "00" / "e_m", b"x", 5_000)
    # The unlink that hung was verified when it was asked for: it may complete now, after which the old scout ends.
    index.rescan(disk, DEADLINE)
    index.sync(DEADLINE)
    assert index.health().state == "live"
    audit(index, [disk, other])
    Evictor(index).evict_oldest(9)
    assert not on_disk([disk, other])
    assert len(index) == 0


def test_it_is_tried_again_by_itself(
    mounts: Mounts, disk: Path, other: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter, "STALL_SECONDS", 2.0)
    monkeypatch.setattr(emitter, "_HUNG_SECONDS", 4.0)
    index = watch(disk, other)
    with mounts.frozen(disk):
        evicting = hang(index)
        eventually(lambda: index.health().frozen, "the base freezes")
    evicting.join(DEADLINE)
    eventually(lambda: not index.health().frozen, "the base is live again")
    index.sync(DEADLINE)
    assert index.health().state == "live"
    audit(index, [disk, other])
    assert Evictor(index).evict_oldest(9)
    assert not on_disk([disk, other])


def test_the_call_that_met_it_may_have_given_up(
    mounts: Mounts, disk: Path, other: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that comes later, from the next scout, finds nobody: the group is evictable all the same."""
    monkeypatch.setattr(emitter, "STALL_SECONDS", 2.0)
    index = watch(disk, other)
    with mounts.frozen(disk):
        with pytest.raises(TimeoutError):
            Evictor(index).evict_oldest(1, timeout=0.2)
        eventually(lambda: index.health().frozen, "the base freezes")
    index.rescan(disk, DEADLINE)
    index.sync(DEADLINE)
    Evictor(index).evict_oldest(9)
    assert not on_disk([disk, other])
    assert len(index) == 0


def test_close_while_it_hangs(
    mounts: Mounts, disk: Path, other: Path, isolation: Isolation, caplog: pytest.LogCaptureFixture
) -> None:
    index = GroupIndex.watch(disk, other, isolation=isolation)
    with mounts.frozen(disk):
        try:
            with pytest.raises(TimeoutError):
                Evictor(index).evict_oldest(1, timeout=0.2)
        finally:
            before = time.monotonic()
            index.close()
        assert time.monotonic() - before < DEADLINE
        assert index.health().state == "closed"
        assert "left behind" in caplog.text


def test_an_index_opens_beside_it(mounts: Mounts, disk: Path, other: Path, isolation: Isolation) -> None:
    """To look is possible, so the base is live until an unlink is tried."""
    with mounts.frozen(disk), GroupIndex.watch(disk, other, isolation=isolation) as index:
        index.sync(DEADLINE)
        assert index.shards == 5


def test_a_short_hang_is_waited_for(mounts: Mounts, disk: Path, other: Path, watch: Watch) -> None:
    index = watch(disk, other)
    with mounts.frozen(disk):
        evicting = hang(index)
    evicting.join(DEADLINE)
    index.sync(DEADLINE)
    assert index.health().scout_restarts == index.health().losses == 0
    assert "a_m" not in index
    assert len(on_disk([disk])) == 1


def test_what_is_rewritten_while_an_unlink_hangs_is_left_alone(
    mounts: Mounts, disk: Path, other: Path, watch: Watch
) -> None:
    """All shards of a group are verified before the first is unlinked; if that one takes long, the rest was verified
    long ago."""
    index = watch(disk, other)
    first = index.pop_oldest()  # out of the way: the next is the group with a shard on each disk
    assert first is not None
    assert [shard.path.startswith(str(disk)) for shard in index["b_m"].shards] == [True, False]
    rewritten = other / "00" / "b_m_1_2"
    with mounts.frozen(disk):
        evicting = hang(index)
        write(rewritten, b"new and precious")
    evicting.join(DEADLINE)
    index.restore(first)
    index.sync(DEADLINE)
    assert rewritten.read_bytes() == b"new and precious"
    assert str(rewritten) in index["b_m"].paths
    assert not os.path.exists(disk / "ab" / "b_m_0_2")
