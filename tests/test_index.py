"""The index follows the disk: everything that happens to files, in both isolations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import ClosedError, GroupIndex, KeyScheme, Layout, NotReadyError
from nixl_index.link import Isolation
from tests.support import DEADLINE, audit, eventually, page_key, write, write_page

Watch = Callable[..., GroupIndex]


def test_first_scan_finds_what_is_there(watch: Watch, bases: list[Path]) -> None:
    for page in range(20):
        write_page(bases, page, ranks=4)
    index = watch(*bases)
    assert len(index) == 20
    assert index.shards == 80
    assert index.nbytes == sum(group.disk_bytes for group in index)
    assert [group.key for group in index] == [page_key(page) for page in range(20)]
    group = index[page_key(3)]
    assert group.recency_ns == group.mtime_ns == 1_700_000_003 * 10**9
    assert len(group) == 4
    assert page_key(3) in index
    assert "nothing" not in index
    with pytest.raises(KeyError):
        index["nothing"]


def test_empty_base(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    assert len(index) == 0
    assert index.oldest() is None
    assert index.pop_oldest() is None
    assert index.nbytes == 0
    assert index.health().state == "live"


def test_new_files_in_known_and_new_buckets(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = watch(*bases)
    for page in range(1, 40):
        write_page(bases, page)
    index.sync(DEADLINE)
    assert len(index) == 40


def test_a_shard_counts_when_it_is_closed(watch: Watch, bases: list[Path]) -> None:
    (bases[0] / "00").mkdir()
    index = watch(*bases)
    path = bases[0] / "00" / "a_m"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        index.sync(DEADLINE)
        assert "a_m" not in index
        os.write(fd, b"data")
    finally:
        os.close(fd)
    index.sync(DEADLINE)
    assert index["a_m"].disk_bytes >= 4


def test_unlink_takes_the_shard_then_the_group(watch: Watch, bases: list[Path]) -> None:
    first, second = write_page(bases, 0)
    index = watch(*bases)
    first.unlink()
    index.sync(DEADLINE)
    assert index[page_key(0)].paths == (str(second),)
    second.unlink()
    index.sync(DEADLINE)
    assert page_key(0) not in index
    assert index.shards == index.nbytes == 0


def test_rename_in_counts_and_rename_out_goes(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    (bases[0] / "00").mkdir()
    index = watch(*bases)
    made = write(tmp_path / "elsewhere", b"x", 5)
    made.rename(bases[0] / "00" / "a_m_0_2")
    index.sync(DEADLINE)
    assert index["a_m"].mtime_ns == 5 * 10**9
    (bases[0] / "00" / "a_m_0_2").rename(bases[0] / "00" / "b_m_0_2")
    index.sync(DEADLINE)
    assert "a_m" not in index
    assert "b_m" in index
    (bases[0] / "00" / "b_m_0_2").rename(tmp_path / "out")
    index.sync(DEADLINE)
    assert len(index) == 0


def test_temporary_name_renamed_into_place(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    write(bases[0] / "00" / "a_m_0_2.tmp")
    write(bases[0] / "00" / ".hidden")
    index.sync(DEADLINE)
    assert len(index) == 0
    assert index.health().ignored >= 2
    (bases[0] / "00" / "a_m_0_2.tmp").rename(bases[0] / "00" / "a_m_0_2")
    index.sync(DEADLINE)
    assert "a_m" in index


def test_utime_moves_the_group(watch: Watch, bases: list[Path]) -> None:
    paths = [write_page(bases, page) for page in range(3)]
    index = watch(*bases)
    os.utime(paths[0][0], (1_800_000_000, 1_700_009_000))
    index.sync(DEADLINE)
    assert [group.key for group in index] == [page_key(1), page_key(2), page_key(0)]
    os.utime(paths[0][0], (1, 1))
    index.sync(DEADLINE)
    assert index.oldest() == index[page_key(0)]  # the other shard still has the first mtime


def test_future_mtime_does_not_live_for_ever(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    before = time.time_ns()
    path = write(bases[0] / "00" / "a_m", b"x", time.time() + 10**6)
    index.sync(DEADLINE)
    recency = index["a_m"].recency_ns
    assert before <= recency <= time.time_ns()
    os.utime(path, ns=(1, path.stat().st_mtime_ns))  # an event, and the same mtime: nothing moves
    index.sync(DEADLINE)
    assert index["a_m"].recency_ns == recency


def test_rewrite_in_place_keeps_one_shard(watch: Watch, bases: list[Path]) -> None:
    path = write(bases[0] / "00" / "a_m_0_2", b"x", 5)
    index = watch(*bases)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"y" * 100_000)
    os.close(fd)
    index.sync(DEADLINE)
    assert len(index["a_m"]) == 1
    assert index["a_m"].mtime_ns == path.stat().st_mtime_ns


def test_buckets_made_and_removed_while_watching(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    for _ in range(3):
        paths = [write(bases[0] / "ab" / f"page{n}_m") for n in range(50)]
        index.sync(DEADLINE)
        assert len(index) == 50
        for path in paths:
            path.unlink()
        (bases[0] / "ab").rmdir()
        index.sync(DEADLINE)
        assert len(index) == 0


def test_directories_that_are_no_buckets_are_left_alone(watch: Watch, bases: list[Path]) -> None:
    write(bases[0] / "lost+found" / "a_m")
    write(bases[0] / "AB" / "a_m")
    write(bases[0] / "abc" / "a_m")
    write(bases[0] / "a_m")
    (bases[0] / "00").mkdir()
    (bases[0] / "00" / "directory_m").mkdir()
    index = watch(*bases)
    write(bases[0] / "lost+found" / "b_m")
    (bases[0] / "00" / "other_m").mkdir()
    index.sync(DEADLINE)
    assert len(index) == 0


@pytest.mark.parametrize(
    ("pattern", "where", "key"),
    [
        ("", ".", "a_m"),
        ("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]", "ab/cd", "a_m"),
        ("*/[0-9a-f][0-9a-f]", "tenant/cd", "tenant/a_m"),
    ],
)
def test_layouts(watch: Watch, bases: list[Path], pattern: str, where: str, key: str) -> None:
    base = bases[0]
    write(base / where / "a_m_0_2")
    index = watch(base, layout=Layout(pattern))
    assert index[key].paths == (str((base / where / "a_m_0_2").resolve()),)
    write(base / where / "a_m_1_2")
    index.sync(DEADLINE)
    assert len(index[key]) == 2
    if pattern:
        write(base / where.replace("cd", "ef") / "b_m")
        write(base / where.replace("ab", "01").replace("tenant", "other") / "a_m_0_2")
        index.sync(DEADLINE)
        assert key.replace("a_m", "b_m") in index
        assert index.shards == 4


def test_tenants_are_kept_apart(watch: Watch, bases: list[Path]) -> None:
    index = watch(bases[0], layout=Layout("*/[0-9a-f][0-9a-f]"))
    write(bases[0] / "one" / "00" / "a_m")
    write(bases[0] / "two" / "00" / "a_m")
    index.sync(DEADLINE)
    assert sorted(group.key for group in index) == ["one/a_m", "two/a_m"]


def test_exact_scheme_leaves_other_models_alone(watch: Watch, bases: list[Path]) -> None:
    write(bases[0] / "00" / "aa_org-mine_0_2_newpool")
    write(bases[0] / "00" / "aa_org-other_0_2")
    index = watch(bases[0], scheme=KeyScheme(models=["org/mine"]))
    assert [group.key for group in index] == ["aa_org-mine"]
    assert index.health().foreign == 1
    index.close()


def test_any_function_is_a_scheme(watch: Watch, bases: list[Path]) -> None:
    def by_extension(name: str) -> str | None:
        if name == "broken":
            raise RuntimeError("no such name")
        return None if name.endswith(".keep") else name.rpartition(".")[2]

    for name in ("1.red", "2.red", "3.blue", "4.keep", "broken"):
        write(bases[0] / "00" / name)
    index = watch(bases[0], scheme=by_extension)
    assert {group.key: len(group) for group in index} == {"red": 2, "blue": 1}
    assert {shard.name for shard in index["red"].shards} == {"1.red", "2.red"}
    assert "no such name" in index.health().last_error
    (bases[0] / "00" / "1.red").unlink()
    index.sync(DEADLINE)
    assert len(index["red"]) == 1
    index.close()


@pytest.mark.parametrize("name", [b"\xff\xfe_m_0_2", b"line\nbreak_m_0_2", b"x" * 251 + b"_0_2", b"caf\xc3\xa9_m"])
def test_odd_names(watch: Watch, bases: list[Path], name: bytes) -> None:
    (bases[0] / "00").mkdir()
    index = watch(bases[0])
    path = os.fsencode(bases[0] / "00") + b"/" + name
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    index.sync(DEADLINE)
    (group,) = index
    assert group.paths == (os.fsdecode(path),)
    os.unlink(path)
    index.sync(DEADLINE)
    assert len(index) == 0


def test_pop_and_restore(watch: Watch, bases: list[Path]) -> None:
    for page in range(3):
        write_page(bases, page)
    index = watch(*bases)
    oldest = index.oldest()
    group = index.pop_oldest()
    assert group == oldest
    assert group is not None
    assert group.key == page_key(0)
    assert group.key not in index
    assert all(Path(path).exists() for path in group.paths)
    index.restore(group)
    assert index[group.key] == group
    index.sync(DEADLINE)
    assert index.pop_oldest() == group
    for path in group.paths:
        os.unlink(path)
    index.restore(group)  # the scout looks, and finds nothing
    index.sync(DEADLINE)
    assert group.key not in index
    with GroupIndex.watch(*bases, isolation="thread") as other, pytest.raises(ValueError, match="not come from"):
        other.restore(group)


def test_restore_keeps_what_came_meanwhile(watch: Watch, bases: list[Path]) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    group = index.pop_oldest()
    assert group is not None
    os.utime(paths[0], (1_800_000_000, 1_700_009_000))
    index.sync(DEADLINE)
    index.restore(group)
    index.sync(DEADLINE)
    assert index[group.key].mtime_ns == 1_700_009_000 * 10**9
    assert len(index[group.key]) == 2


def test_watch_without_blocking(isolation: Isolation, bases: list[Path]) -> None:
    for page in range(50):
        write_page(bases, page)
    with GroupIndex.watch(*bases, isolation=isolation, block=False) as index:
        index.wait_ready(DEADLINE)
        assert len(index) == 50


def test_calls_before_the_first_scan_is_over_say_so(bases: list[Path]) -> None:
    write_page(bases, 0)
    with GroupIndex.watch(*bases, isolation="thread", block=False) as index:
        follower = index._follower
        with follower.lock:  # the writer waits: the scan cannot end
            if follower.order.loading:
                for call in (index.pop_oldest, index.oldest, lambda: list(index), lambda: index["x"]):
                    with pytest.raises(NotReadyError, match="wait_ready"):
                        call()
                with pytest.raises(TimeoutError, match="first scan"):
                    index.wait_ready(0.01)
        index.wait_ready(DEADLINE)
        assert index.oldest() is not None


def test_closed_index_says_so(isolation: Isolation, bases: list[Path]) -> None:
    index = GroupIndex.watch(*bases, isolation=isolation)
    index.close()
    index.close()
    for call in (index.pop_oldest, index.oldest, index.sync, index.rescan, lambda: len(index), lambda: "x" in index):
        with pytest.raises(ClosedError):
            call()
    assert index.health().state == "closed"


def test_close_while_another_thread_waits(isolation: Isolation, bases: list[Path]) -> None:
    index = GroupIndex.watch(*bases, isolation=isolation)
    index._observer.emitter.send = lambda message: None  # type: ignore[union-attr, method-assign, assignment]
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            index.sync(DEADLINE)
        except ClosedError as error:
            seen.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: index._follower.asks._waiting, "the other thread waits")
    index.close()
    waiter.join(DEADLINE)
    assert len(seen) == 1


def test_two_indexes_on_one_path(watch: Watch, bases: list[Path]) -> None:
    one, two = watch(*bases), watch(*bases)
    for page in range(10):
        write_page(bases, page)
    for index in (one, two):
        index.sync(DEADLINE)
        assert len(index) == 10


def test_relative_and_symlinked_bases_survive_chdir(
    watch: Watch, bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(bases[1])
    monkeypatch.chdir(bases[0])
    index = watch(Path("."), tmp_path / "link")
    monkeypatch.chdir("/")
    write(bases[0] / "00" / "a_m")
    write(bases[1] / "00" / "b_m")
    index.sync(DEADLINE)
    assert sorted(group.key for group in index) == ["a_m", "b_m"]
    index.close()


def test_a_writer_process_at_full_speed(watch: Watch, bases: list[Path]) -> None:
    code = """if True:
        import os, sys
        from pathlib import Path
        from tests.support import page_names, route
        bases = [Path(base) for base in sys.argv[1:]]
        for bucket in (base / f"{n:02x}" for base in bases for n in range(256)):
            bucket.mkdir(exist_ok=True)
        for page in range(5_000):
            for name in page_names(page):
                os.close(os.open(route(name, bases), os.O_CREAT | os.O_WRONLY))
            if page % 3 == 0:
                os.unlink(route(page_names(page // 2)[0], bases)) if page % 2 else None
    """
    index = watch(*bases)
    subprocess.run([sys.executable, "-c", code, *bases], check=True, timeout=DEADLINE, cwd=Path(__file__).parents[1])
    audit(index, bases)
    assert len(index) == 5_000


def test_rescan_by_hand(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = watch(*bases)
    index.rescan(timeout=DEADLINE)
    index.rescan(bases[1], timeout=DEADLINE)
    assert index.health().reconciles == 2
    assert index.health().mended == 0
    with pytest.raises(ValueError, match="none of the base dirs"):
        index.rescan("/elsewhere")


def test_overflow_is_reconciled(process_watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    bucket = bases[0] / "00"
    bucket.mkdir(exist_ok=True)
    index = process_watch(*bases)
    pid = index.health().scout_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for n in range(limit // 2 + 1_000):
            path = bucket / f"page{n}_m"
            path.touch()
            os.utime(path, (n, n))
        for gone in map(Path, index[page_key(0)].paths):
            gone.unlink()
    finally:
        os.kill(pid, signal.SIGCONT)
    index.sync(DEADLINE)
    health = index.health()
    assert health.overflows >= 1
    assert health.reconciles >= 1
    assert health.state == "live"
    assert page_key(0) not in index
    assert len(index) == limit // 2 + 1_000


def test_a_killed_scout_is_replaced(process_watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = process_watch(*bases)
    gone, kept = map(Path, index[page_key(0)].paths)
    os.kill(index.health().scout_pid, signal.SIGKILL)
    gone.unlink()
    write_page(bases, 1)
    eventually(lambda: index.health().scout_restarts == 1, "another scout runs")
    index.sync(DEADLINE)
    assert index[page_key(0)].paths == (str(kept),)
    assert page_key(1) in index
    assert index.health().losses == 1
    assert index.health().state == "live"


def test_nothing_starts_at_import() -> None:
    code = "import threading, os, nixl_index; print(threading.active_count(), os.listdir('/proc/self/fd'))"
    plain = "import threading, os; print(threading.active_count(), os.listdir('/proc/self/fd'))"
    outputs = [subprocess.run([sys.executable, "-c", c], capture_output=True, text=True).stdout for c in (code, plain)]
    assert outputs[0] == outputs[1] != ""
