"""The real writer: pages that NVIDIA's NIXL writes through its POSIX plugin, from another process, as SGLang has it do.

Without NIXL these tests are skipped, but not in CI, where a skip would hide that the real thing is no longer tested.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, KeyScheme, Shard
from tests.support import DEADLINE, eventually, page_key, page_names, route

pytestmark = pytest.mark.nixl

RANKS = 2
COMPONENTS = {"_k": 70_000, "_v": 65_536, "_mamba_temporal": 4_097}
"""What a rank writes of each page, in bytes: two whose last block is not full, one that fits its blocks."""

Found = dict[str, set[Shard]]
"""Group key to its shards."""


@pytest.fixture(scope="module", autouse=True)
def _nixl() -> None:
    """Skip, or fail in CI, where NIXL cannot be imported; asked in another process, since NIXL may start threads."""
    asked = subprocess.run([sys.executable, "-c", "import nixl_cu12._api"], capture_output=True, text=True, timeout=50)
    if asked.returncode != 0:
        reason = "NIXL cannot be imported: " + (asked.stderr.strip().splitlines() or [f"exit {asked.returncode}"])[-1]
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(params=["fd", "path"])
def how(request: pytest.FixtureRequest) -> str:
    """Who opens the files: SGLang, which hands NIXL a descriptor, or NIXL itself, by path."""
    return str(request.param)


@pytest.fixture
def index(bases: list[Path], process_watch: Callable[..., GroupIndex]) -> GroupIndex:
    """An index that was started while there was nothing yet."""
    return process_watch(*bases)


class Page:
    """One logical entry: where SGLang puts the shards of all its ranks, and how large each is."""

    def __init__(self, number: int, bases: list[Path]) -> None:
        self.key = page_key(number)
        self.fill = number + 1
        self.files: dict[str, int] = {}
        for component, size in COMPONENTS.items():
            for name in page_names(number, RANKS, [component]):
                self.files[str(route(name, bases))] = size

    def move(self, how: str, do: str = "write") -> None:
        """Have NIXL write the page, or read it and compare the bytes. Blocks until the process that does has ended."""
        job = {"how": how, "do": do, "files": self.files, "fill": self.fill}
        writer = [sys.executable, str(Path(__file__).with_name("nixl_writer.py"))]
        ran = subprocess.run(writer, input=json.dumps(job), capture_output=True, text=True, timeout=50)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def disk_bytes(self) -> int:
        return sum(os.lstat(path).st_blocks * 512 for path in self.files)


def write(pages: Iterable[Page], how: str) -> None:
    """Write pages, one after the other: each has a process of its own, which takes longer than a tick of mtimes."""
    for page in pages:
        page.move(how)


def on_disk(pages: Iterable[Page], bases: list[Path]) -> Found:
    """What the disk holds, by the keys that the pages were written under; fails where that is not just these pages."""
    found: Found = {}
    keys = {path: page.key for page in pages for path in page.files}
    for base in bases:
        for directory, _, names in os.walk(base):
            for name in names:
                path = f"{directory}/{name}"
                stat = os.lstat(path)
                shard = Shard(path, str(base), stat.st_mtime_ns, stat.st_blocks * 512)
                found.setdefault(keys.pop(path), set()).add(shard)
    assert not keys, "these shards are not on the disk"
    return found


def indexed(index: GroupIndex) -> Found:
    return {group.key: set(group.shards) for group in index}


def keys_in_order(index: GroupIndex) -> list[str]:
    """The keys, oldest first."""
    return [group.key for group in index]


def assert_true(index: GroupIndex, pages: list[Page], bases: list[Path]) -> None:
    """The index has these pages and nothing else, as the disk has them, and in the order of their mtimes."""
    truth = on_disk(pages, bases)
    assert indexed(index) == truth
    newest = {key: max(shard.mtime_ns for shard in shards) for key, shards in truth.items()}
    assert [(group.recency_ns, group.key) for group in index] == sorted((newest[key], key) for key in newest)
    assert index.shards == sum(map(len, truth.values()))
    assert index.nbytes == sum(page.disk_bytes() for page in pages)
    assert index.health().state == "live"
    assert index.health().losses == 0


def test_a_page_lies_in_many_buckets_and_on_both_disks(bases: list[Path]) -> None:
    """Else the tests below would not test what they are for."""
    page = Page(0, bases)
    assert len(page.files) == RANKS * len(COMPONENTS)
    assert {path.rsplit("/", 2)[0] for path in page.files} == set(map(str, bases))
    assert len({path.rsplit("/", 2)[1] for path in page.files}) > 1
    assert {KeyScheme()(os.path.basename(path)) for path in page.files} == {page.key}


@pytest.mark.parametrize("scheme", [KeyScheme(), KeyScheme(["Qwen/Qwen3-32B"])], ids=["any model", "exact"])
def test_pages_written_before_the_start_are_found(
    how: str, bases: list[Path], process_watch: Callable[..., GroupIndex], scheme: KeyScheme
) -> None:
    pages = [Page(number, bases) for number in range(3)]
    write(pages, how)
    index = process_watch(*bases, scheme=scheme)
    assert keys_in_order(index) == [page.key for page in pages]
    assert_true(index, pages, bases)


def test_pages_written_while_watched_are_followed(how: str, bases: list[Path], index: GroupIndex) -> None:
    pages = [Page(number, bases) for number in range(3)]
    for written, page in enumerate(pages, start=1):
        page.move(how)
        index.sync(timeout=DEADLINE)
        assert keys_in_order(index) == [page.key for page in pages[:written]]
        assert_true(index, pages[:written], bases)
    assert index[pages[1].key].disk_bytes == pages[1].disk_bytes()


def test_old_pages_and_new_ones_stand_in_one_order(
    how: str, bases: list[Path], process_watch: Callable[..., GroupIndex]
) -> None:
    pages = [Page(number, bases) for number in range(4)]
    write(pages[:2], how)
    index = process_watch(*bases)
    write(pages[2:], how)
    index.sync(timeout=DEADLINE)
    assert keys_in_order(index) == [page.key for page in pages]
    assert_true(index, pages, bases)


def test_a_rewrite_makes_the_group_the_youngest(how: str, bases: list[Path], index: GroupIndex) -> None:
    pages = first, second = [Page(number, bases) for number in range(2)]
    write(pages, how)
    index.sync(timeout=DEADLINE)
    before = index[first.key]
    inodes = [os.lstat(path).st_ino for path in first.files]

    first.fill = 99
    first.move(how)
    index.sync(timeout=DEADLINE)

    assert [os.lstat(path).st_ino for path in first.files] == inodes, "a rewrite keeps the files"
    assert keys_in_order(index) == [second.key, first.key]
    assert index[first.key].recency_ns > before.recency_ns
    assert index[first.key].paths == before.paths
    assert_true(index, pages, bases)


def test_a_rewrite_of_one_shard_is_enough(how: str, bases: list[Path], index: GroupIndex) -> None:
    pages = first, second = [Page(number, bases) for number in range(2)]
    write(pages, how)
    one_shard = Page(0, bases)
    one_shard.files = dict(list(first.files.items())[-1:])
    one_shard.move(how)
    index.sync(timeout=DEADLINE)
    assert keys_in_order(index) == [second.key, first.key]
    assert_true(index, pages, bases)


def test_a_read_moves_nothing(how: str, bases: list[Path], index: GroupIndex) -> None:
    """In fd mode SGLang opens read-write even to read: that looks like a write, but for the mtime."""
    pages = [Page(number, bases) for number in range(2)]
    write(pages, how)
    index.sync(timeout=DEADLINE)
    before = list(index)

    pages[0].move(how, "read")
    index.sync(timeout=DEADLINE)

    assert list(index) == before
    assert_true(index, pages, bases)


def test_eviction_takes_the_oldest_page_whole_and_no_other(how: str, bases: list[Path], index: GroupIndex) -> None:
    pages = first, second = [Page(number, bases) for number in range(2)]
    write(pages, how)
    index.sync(timeout=DEADLINE)
    freed = first.disk_bytes()

    eviction = Evictor(index).evict_oldest(timeout=DEADLINE)

    assert [(group.key, group.shards, group.disk_bytes) for group in eviction.evicted] == [
        (first.key, len(first.files), freed)
    ]
    assert (eviction.skipped, eviction.failed, eviction.disk_bytes) == ((), (), freed)
    assert not any(map(os.path.lexists, first.files))
    second.move(how, "read")  # compares the bytes of each shard
    index.sync(timeout=DEADLINE)
    assert_true(index, [second], bases)


def test_an_evicted_page_that_is_written_again_is_back(how: str, bases: list[Path], index: GroupIndex) -> None:
    pages = first, second = [Page(number, bases) for number in range(2)]
    write(pages, how)
    index.sync(timeout=DEADLINE)
    assert Evictor(index).evict_oldest(timeout=DEADLINE)
    first.move(how)
    index.sync(timeout=DEADLINE)
    assert keys_in_order(index) == [second.key, first.key]
    assert_true(index, pages, bases)


def test_a_page_rewritten_behind_the_index_is_not_evicted(how: str, bases: list[Path], index: GroupIndex) -> None:
    """The index pops what it knows, and the scout looks once more before it unlinks. It is stopped here during the
    rewrite, so that the index cannot know of it: the fresh page survives, and the next one goes."""
    pages = first, second = [Page(number, bases) for number in range(2)]
    write(pages, how)
    index.sync(timeout=DEADLINE)
    scout = index.health().scout_pid

    os.kill(scout, signal.SIGSTOP)
    try:
        first.move(how)
        with ThreadPoolExecutor(1) as pool:
            evicting = pool.submit(Evictor(index).evict_oldest, timeout=DEADLINE)
            try:
                eventually(lambda: first.key not in keys_in_order(index), "the oldest is popped")
            finally:
                os.kill(scout, signal.SIGCONT)
            eviction = evicting.result()
    finally:
        os.kill(scout, signal.SIGCONT)

    assert [(group.key, group.reason) for group in eviction.skipped] == [(first.key, "rewritten since it was indexed")]
    assert [group.key for group in eviction.evicted] == [second.key]
    first.move(how, "read")
    index.sync(timeout=DEADLINE)
    assert_true(index, [first], bases)
