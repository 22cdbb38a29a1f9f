"""FAILURES 9-11: what inotify does not give. A clear error at the start; later a directory is polled, not forgotten.

Functions named `scene_...` run in a process with limits of its own, in place of the machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from nixl_index import Evictor, logs
from nixl_index.link import Isolation
from tests.provoke import NO_OVERRIDE, OWN_LIMITS, Log, Nothing, assert_follows, keys, opened, run_scene, set_limit
from tests.support import eventually, write

# --- 9: no inotify instance ---


def test_f09_no_inotify_instance_at_the_start(isolation: Isolation, bases: list[Path]) -> None:
    run_scene(OWN_LIMITS, scene_no_instance, isolation, bases[0])


def scene_no_instance(isolation: str, base: str) -> None:
    before = Nothing()
    value = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
    set_limit("max_inotify_instances", 0)
    with pytest.raises(OSError, match=rf"fs\.inotify\.max_user_instances \(now {value}\)"):
        opened(isolation, base)
    eventually(before.is_left, "nothing is left running or open")
    set_limit("max_inotify_instances", 1)
    with opened(isolation, base) as index:
        assert_follows(index, Path(base))


def test_f09_no_inotify_instance_for_another_scout(bases: list[Path]) -> None:
    run_scene(OWN_LIMITS, scene_no_instance_later, bases[0])


def scene_no_instance_later(path: str) -> None:
    """The scout dies, and its successor has none: the index says why, answers, and is whole again when it can be."""
    base, log = Path(path), Log()
    write(base / "00" / "kept_m", b"x", 5)
    gone = write(base / "00" / "gone_m", b"x", 6)
    with opened("process", base) as index:
        set_limit("max_inotify_instances", 0)
        os.kill(index.health().scout_pid, signal.SIGKILL)
        eventually(lambda: log.count("fs.inotify.max_user_instances"), "the log says why")
        eventually(lambda: "fs.inotify.max_user_instances" in index.health().last_error, "health() says why")
        assert index.health().state == "degraded"
        assert keys(index) == ["gone_m", "kept_m"]
        with pytest.raises(TimeoutError):
            index.sync(0.1)
        gone.unlink()
        set_limit("max_inotify_instances", 100)
        eventually(lambda: index.health().state == "live", "another scout runs")
        assert keys(index) == ["kept_m"]
        assert index.health().isolation == "process"


# --- 10, 11: no watch ---


def test_f10_no_watch_at_all(isolation: Isolation, bases: list[Path]) -> None:
    run_scene(OWN_LIMITS, scene_no_watch, isolation, bases[0])


def scene_no_watch(isolation: str, path: str) -> None:
    """Not even of the base: everything is listed on a timer."""
    base, log = Path(path), Log()
    write(base / "00" / "old_m", b"x", 5)
    gone = write(base / "01" / "gone_m", b"x", 6)
    touched = write(base / "01" / "touched_m", b"x", 7)
    set_limit("max_inotify_watches", 0)
    with opened(isolation, base) as index:
        health = index.health()
        assert (health.state, health.watched, health.unwatched) == ("degraded", 0, 3)
        assert keys(index) == ["gone_m", "old_m", "touched_m"]
        assert log.count("fs.inotify.max_user_watches") == 1
        gone.unlink()
        os.utime(touched, (8, 8))
        write(base / "00" / "new_m", b"x", 9)
        write(base / "02" / "new_bucket_m", b"x", 10)
        eventually(lambda: keys(index) == ["new_bucket_m", "new_m", "old_m", "touched_m"], "they are polled")
        eventually(lambda: index["touched_m"].mtime_ns == 8 * 10**9, "mtimes are polled")
        shutil.rmtree(base / "02")
        eventually(lambda: "new_bucket_m" not in index, "a bucket that went is polled")
        assert [group.key for group in Evictor(index).evict_oldest().evicted] == ["old_m"]
        assert log.count("fs.inotify.max_user_watches") == 1
        set_limit("max_inotify_watches", 100)
        assert_follows(index, base)
        assert index.health().watched == 3
        assert index.health().losses == 0


def test_f11_no_watch_on_some_buckets(isolation: Isolation, bases: list[Path]) -> None:
    run_scene(OWN_LIMITS, scene_no_watch_on_some, isolation, bases[0])


def scene_no_watch_on_some(isolation: str, path: str) -> None:
    base, log = Path(path), Log()
    for number in range(6):
        write(base / f"{number:02x}" / f"old{number}_m", b"x", number)
    set_limit("max_inotify_watches", 3)
    with opened(isolation, base) as index:
        health = index.health()
        assert (health.state, health.watched, health.unwatched) == ("degraded", 3, 4)
        assert len(index) == 6
        assert log.count("fs.inotify.max_user_watches") == 1
        for number in range(8):  # two of these buckets are new
            write(base / f"{number:02x}" / f"new{number}_m", b"x", 10 + number)
        for number in range(6):
            (base / f"{number:02x}" / f"old{number}_m").unlink()
        eventually(lambda: keys(index) == [f"new{number}_m" for number in range(8)], "what has no watch is polled")
        eventually(lambda: index.health().unwatched == 6, "new buckets are counted")
        assert log.count("fs.inotify.max_user_watches") == 1
        for number in range(2, 8):  # room comes back as watched buckets go, whichever they are
            shutil.rmtree(base / f"{number:02x}")
        assert_follows(index, base)
        assert keys(index) == ["last_m", "new0_m", "new1_m"]
        assert index.health().watched == 3


def test_f11_the_warning_is_not_spent_on_something_else(isolation: Isolation, bases: list[Path]) -> None:
    run_scene((*OWN_LIMITS, *NO_OVERRIDE), scene_two_reasons, isolation, bases[0])


def scene_two_reasons(isolation: str, path: str) -> None:
    """One bucket has no watch for its mode; when others have none for the limit, that is said too; and when the room
    is back, it is no reason for anything any more."""
    base, log = Path(path), Log()
    logs.SECONDS = 0.0
    write(base / "00" / "unreadable_m")
    (base / "00").chmod(0)
    with opened(isolation, base) as index:
        eventually(lambda: log.count("Permission denied"), "the mode is named")
        set_limit("max_inotify_watches", 1)
        for number in range(1, 4):
            write(base / f"{number:02x}" / f"page{number}_m")
        eventually(lambda: len(index) == 3, "what has no watch is polled")
        assert log.count("fs.inotify.max_user_watches") == 1
        set_limit("max_inotify_watches", 100)
        (base / "00").chmod(0o700)
        assert_follows(index, base)
        (base / "00").chmod(0)
        eventually(lambda: log.count("Permission denied") == 2, "the mode is named again")
        assert log.count("fs.inotify.max_user_watches") == 1
        (base / "00").chmod(0o700)
        assert_follows(index, base)
