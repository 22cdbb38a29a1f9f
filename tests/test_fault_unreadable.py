"""FAILURES 12 and 13: what cannot be read, for its mode or for want of descriptors, is not taken for empty or deleted.

Functions named `scene_...` run in a process with rights or limits of its own.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, NixlIndexError, records
from nixl_index.link import Isolation
from nixl_index.tree import Tree
from tests.provoke import NO_OVERRIDE, Log, Nothing, assert_follows, keys, no_descriptors, opened, run_scene
from tests.support import DEADLINE, audit, eventually, page_key, write, write_page

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


# --- 12: unreadable directories ---


def test_f12_unreadable_base_at_the_start(isolation: Isolation, bases: list[Path]) -> None:
    run_scene(NO_OVERRIDE, scene_unreadable_base, isolation, bases[0])


def scene_unreadable_base(isolation: str, path: str) -> None:
    before = Nothing()
    for mode in (0, 0o300, 0o600):
        Path(path).chmod(mode)
        with pytest.raises(PermissionError, match=path):
            opened(isolation, path)
        eventually(before.is_left, "nothing is left running or open")
    Path(path).chmod(0o700)
    with opened(isolation, path) as index:
        assert_follows(index, Path(path))


@pytest.mark.parametrize("mode", ["000", "400", "300"])
def test_f12_unreadable_bucket(isolation: Isolation, bases: list[Path], mode: str) -> None:
    run_scene(NO_OVERRIDE, scene_unreadable_bucket, isolation, bases[0], mode)


def scene_unreadable_bucket(isolation: str, path: str, mode: str) -> None:
    """At the start, and again later: what cannot be seen is neither forgotten nor taken for deleted."""
    base, log = Path(path), Log()
    write(base / "00" / "other_m", b"x", 5)
    write(base / "01" / "behind_m", b"x", 4)
    (base / "01").chmod(int(mode, 8))
    with opened(isolation, base) as index:
        assert keys(index) == ["other_m"]
        assert index.health().state == "degraded"
        assert index.health().errors > 0
        assert "Permission denied" in index.health().last_error
        assert log.count("Permission denied") >= 1
        (base / "01").chmod(0o700)
        eventually(lambda: keys(index) == ["behind_m", "other_m"], "it is listed when it can be")
        assert_follows(index, base)

        (base / "01").chmod(int(mode, 8))
        index.rescan(timeout=DEADLINE)
        assert keys(index) == ["behind_m", "last_m", "other_m"]
        assert index.health().state == "degraded"
        (base / "01").chmod(0o700)
        assert_follows(index, base)
        assert index.health().losses == 0


def test_f12_base_that_turns_unreadable(isolation: Isolation, bases: list[Path]) -> None:
    run_scene(NO_OVERRIDE, scene_base_turns_unreadable, isolation, bases[0])


def scene_base_turns_unreadable(isolation: str, path: str) -> None:
    """Those who have a bucket open write on. No event says that the base can be read again."""
    base = Path(path)
    kept = write(base / "00" / "kept_m", b"x", 5)
    bucket = os.open(base / "00", os.O_RDONLY)
    with opened(isolation, base) as index:
        base.chmod(0)
        os.close(os.open("new_m", os.O_CREAT | os.O_WRONLY, dir_fd=bucket))
        index._follower.asks.ask(records.Sync).wait(None, "sync")
        eventually(lambda: index.health().errors, "the look fails")
        assert not Evictor(index).evict_oldest()
        assert len(index) == 1
        assert index.health().state in ("degraded", "frozen")
        base.chmod(0o700)
        eventually(lambda: "new_m" in index, "what could not be looked at then is looked at now")
        assert kept.exists()
    os.close(bucket)


# --- 13: no file descriptors ---


def test_f13_a_listing_that_fails_proves_nothing(
    watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    for page in range(20):
        write_page(bases, page)
    gone = write_page(bases, 20)
    index = watch(*bases, poll_interval=0.1, rescan_interval=None)
    with no_descriptors(index):
        index.rescan(timeout=DEADLINE)
        assert len(index) == 21
        for path in gone:  # this can be told all the same
            path.unlink()
        index.sync(DEADLINE)
        assert len(index) == 20
        health = index.health()
        assert health.state == "degraded"
        assert "Too many open files" in health.last_error
        assert health.errors > 0
    assert "Too many open files" in caplog.text
    eventually(lambda: index.health().state == "live", "everything is listed again")
    assert len(index) == 20
    assert (index.health().mended, index.health().losses) == (0, 0)


def test_f13_the_first_listing_fails(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was seen, and that is not "nothing is there". In a thread, which can be held before its first listing."""
    for page in range(20):
        write_page(bases, page)
    step, go_on = Tree.step, threading.Event()
    monkeypatch.setattr(Tree, "step", lambda tree: go_on.wait() and step(tree))
    with GroupIndex.watch(*bases, isolation="thread", block=False, poll_interval=0.1) as index:
        with no_descriptors(index):
            go_on.set()
            index.wait_ready(DEADLINE)
            assert index.health().state == "degraded"
        eventually(lambda: index.health().state == "live", "everything is listed")
        assert len(index) == 20
        assert index.health().mended == 0
        audit(index, bases)


def test_f13_eviction_goes_on_afterwards(watch: Watch, bases: list[Path]) -> None:
    """No file could be looked at: that is no reason to set a group aside for good."""
    pages = [write_page(bases, page) for page in range(3)]
    index = watch(*bases, poll_interval=0.1)
    with no_descriptors(index):
        assert not Evictor(index).evict_oldest()
    assert all(path.exists() for page in pages for path in page)
    eventually(lambda: not Evictor(index).evict_oldest(3) and len(index) == 0, "all can be evicted", 10)


def test_f13_a_base_that_comes_back_meanwhile(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = watch(*bases, poll_interval=0.1)
    away = bases[0].with_name("away")
    with no_descriptors(index):
        bases[0].rename(away)
        eventually(lambda: index.health().state == "frozen", "the base is out of sight")
        away.rename(bases[0])
        eventually(lambda: index.health().state != "frozen", "the base is back")
    eventually(lambda: index.health().state == "live", "everything is listed")
    assert index.health().scout_restarts == 0
    assert len(index[page_key(0)]) == 2


def test_f13_any_limit_at_the_start(isolation: Isolation, bases: list[Path]) -> None:
    run_scene((), scene_any_limit, isolation, bases[0])


def scene_any_limit(isolation: str, path: str) -> None:
    """A clear error and nothing left behind, or an index that is whole."""
    for page in range(5):
        write_page([Path(path)], page)
    before = Nothing()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    whole = 0
    for limit in range(3, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        index = None
        try:
            index = opened(isolation, path)
        except (OSError, NixlIndexError) as error:
            assert "Too many open files" in str(error) or "limit of open files" in str(error), repr(error)  # noqa: PT017
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if index is not None:
            eventually(lambda index=index: index.health().state == "live", "it is whole")
            assert len(index) == 5
            index.close()
            whole += 1
        eventually(before.is_left, "nothing is left running or open")
        if whole == 3:
            break
    assert whole == 3
