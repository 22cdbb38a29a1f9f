"""Eviction: the oldest group, whole, verified, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, KeyScheme, NotReadyError
from nixl_index.link import Isolation
from tests.support import DEADLINE, audit, page_key, route, write, write_page

Watch = Callable[..., GroupIndex]

HYBRID = ("", "_k", "_v", "_kv_k", "_kv_v", "_swa_k", "_swa_v", "_mamba_temporal", "_mamba_conv_0")


def test_evicts_the_oldest_groups_whole(watch: Watch, bases: list[Path]) -> None:
    pages = [write_page(bases, page, ranks=4) for page in range(10)]
    index = watch(*bases)
    eviction = Evictor(index).evict_oldest(3)
    assert [group.key for group in eviction.evicted] == [page_key(page) for page in range(3)]
    assert all(group.shards == 4 and group.disk_bytes >= 4 for group in eviction.evicted)
    assert eviction.disk_bytes == sum(group.disk_bytes for group in eviction.evicted)
    assert not eviction.skipped
    assert not eviction.failed
    assert not any(path.exists() for paths in pages[:3] for path in paths)
    assert all(path.exists() for paths in pages[3:] for path in paths)
    index.sync(DEADLINE)
    assert len(index) == 7


def test_hybrid_page_goes_with_all_ranks_and_components(watch: Watch, bases: list[Path]) -> None:
    """SGLang's own table: 18 files over two disks go, the new page stays whole."""
    names = [f"page-{age}_model_{rank}_2{part}" for age in ("old", "new") for rank in range(2) for part in HYBRID]
    for name in names:
        write(route(name, bases), b"x", 100 if "old" in name else 200)
    index = watch(*bases)
    assert sorted(group.key for group in index) == ["page-new_model", "page-old_model"]
    (gone,) = Evictor(index).evict_oldest().evicted
    assert (gone.key, gone.shards) == ("page-old_model", 18)
    left = {path.name for base in bases for path in base.glob("*/*")}
    assert left == {name for name in names if "new" in name}


def test_evict_bytes_stops_when_it_is_enough(watch: Watch, bases: list[Path]) -> None:
    for page in range(10):
        write_page(bases, page, data=b"x" * 8192)
    index = watch(*bases)
    index.sync(DEADLINE)
    each = index[page_key(0)].disk_bytes
    assert len(Evictor(index).evict_bytes(2 * each).evicted) == 2
    assert len(Evictor(index).evict_bytes(each + 1).evicted) == 2
    assert not Evictor(index).evict_bytes(0)
    assert len(Evictor(index).evict_bytes(10**15).evicted) == 6
    assert not Evictor(index).evict_oldest()


@pytest.mark.parametrize("mtime", [1_600_000_000, 1_800_000_000])
def test_a_rewritten_group_is_left_alone(
    watch: Watch, bases: list[Path], mtime: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index does not know of the rewrite yet: no event may tell it."""
    old = write_page(bases, 0)
    young = write_page(bases, 1)
    index = watch(*bases)
    with _deaf(index):
        os.utime(old[0], (mtime, mtime))
        eviction = Evictor(index).evict_oldest()
    assert [group.key for group in eviction.evicted] == [page_key(1)]
    ((key, reason),) = [(group.key, group.reason) for group in eviction.skipped]
    assert (key, reason) == (page_key(0), "rewritten since it was indexed")
    assert all(path.exists() for path in old)
    assert not any(path.exists() for path in young)
    assert index[page_key(0)].mtime_ns == max(mtime, 1_700_000_000) * 10**9
    assert [group.key for group in Evictor(index).evict_oldest().evicted] == [page_key(0)]


class _deaf:
    """Keep the index from what happens meanwhile: an event of the past second, as it were."""

    def __init__(self, index: GroupIndex) -> None:
        self._follower = index._follower

    def __enter__(self) -> None:
        shards, gone = self._follower.writer.on_shards, self._follower.writer.on_gone
        self._kept = (shards, gone)
        from nixl_index import records
        from nixl_index.records import Origin

        def only_looks(handler: Callable[..., None]) -> Callable[..., None]:
            return lambda told: handler(told) if told.origin == Origin.LOOK else None

        self._follower._handlers[records.Shards] = only_looks(shards)
        self._follower._handlers[records.Gone] = only_looks(gone)

    def __exit__(self, *exc_info: object) -> None:
        from nixl_index import records

        self._follower._handlers[records.Shards], self._follower._handlers[records.Gone] = self._kept


def test_shards_that_are_gone_already_are_fine(watch: Watch, bases: list[Path]) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    with _deaf(index):
        paths[0].unlink()
        (gone,) = Evictor(index).evict_oldest().evicted
    assert gone.shards == 1
    assert not paths[1].exists()


def test_a_bucket_that_is_gone_is_fine(watch: Watch, bases: list[Path]) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    with _deaf(index):
        paths[0].unlink()
        paths[0].parent.rmdir()
        eviction = Evictor(index).evict_oldest()
    assert eviction.evicted or eviction.skipped
    Evictor(index).evict_oldest()
    assert not paths[1].exists()


def test_nothing_is_unlinked_through_a_symlink(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    bucket = paths[0].parent
    elsewhere = tmp_path / "elsewhere"
    with _deaf(index):
        bucket.rename(elsewhere)
        bucket.symlink_to(elsewhere)
        eviction = Evictor(index).evict_oldest()
    assert not eviction.evicted
    assert (elsewhere / paths[0].name).exists()
    assert paths[1].exists()
    index.sync(DEADLINE)
    assert index[page_key(0)].paths == (str(paths[1]),)


def test_a_shard_replaced_by_something_else_is_left_alone(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    target = write(tmp_path / "target", b"precious", 1_700_000_000)
    with _deaf(index):
        paths[0].unlink()
        paths[0].symlink_to(target)
        Evictor(index).evict_oldest()
    assert target.exists()
    assert paths[0].is_symlink()


def test_hard_links_free_nothing(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    path = write(bases[0] / "00" / "a_m", b"x" * 10_000, 5)
    os.link(path, tmp_path / "other")
    index = watch(bases[0])
    eviction = Evictor(index).evict_bytes(1)
    (gone,) = eviction.evicted
    assert (gone.shards, gone.disk_bytes) == (1, 0)
    assert (tmp_path / "other").exists()


def test_a_shard_that_comes_after_forms_the_group_anew(watch: Watch, bases: list[Path]) -> None:
    paths = write_page(bases, 0)
    index = watch(*bases)
    Evictor(index).evict_oldest()
    write(paths[0], b"x", 9)
    index.sync(DEADLINE)
    assert index[page_key(0)].paths == (str(paths[0]),)
    assert [group.key for group in Evictor(index).evict_oldest().evicted] == [page_key(0)]


def test_more_groups_than_one_command_carries(watch: Watch, bases: list[Path]) -> None:
    for page in range(200):
        write_page(bases, page)
    index = watch(*bases)
    assert len(Evictor(index).evict_oldest(150).evicted) == 150
    audit(index, bases)
    assert len(Evictor(index).evict_oldest(1_000).evicted) == 50
    assert not list(bases[0].glob("*/*"))


def test_foreign_files_survive_a_full_eviction(watch: Watch, bases: list[Path]) -> None:
    kept = [
        write(bases[0] / "00" / "aa_other-model_0_2"),
        write(bases[0] / "00" / "aa_mine_0_2.tmp"),
        write(bases[0] / "00" / ".nfs0001"),
        write(bases[0] / "notes" / "aa_mine_0_2"),
        write(bases[0] / "aa_mine_0_2"),
    ]
    write(bases[0] / "00" / "aa_mine_0_2")
    index = watch(*bases, scheme=KeyScheme(models=["mine"]))
    assert len(Evictor(index).evict_oldest(100).evicted) == 1
    assert all(path.exists() for path in kept)
    index.close()


@pytest.mark.parametrize("n", [-1, True, 1.5, "3", None])
def test_bad_counts(isolation: Isolation, bases: list[Path], n: object) -> None:
    write_page(bases, 0)
    with GroupIndex.watch(*bases, isolation=isolation) as index:
        for call in (Evictor(index).evict_oldest, Evictor(index).evict_bytes):
            with pytest.raises((TypeError, ValueError), match="n is"):
                call(n)  # type: ignore[arg-type]
        assert len(index) == 1
    with pytest.raises(TypeError, match="GroupIndex"):
        Evictor("index")  # type: ignore[arg-type]


def test_no_answer_in_time(process_watch: Watch, bases: list[Path]) -> None:
    paths = write_page(bases, 0)
    index = process_watch(*bases)
    pid = index.health().scout_pid
    os.kill(pid, 19)
    try:
        with pytest.raises(TimeoutError, match="evict"):
            Evictor(index).evict_oldest(timeout=0.05)
    finally:
        os.kill(pid, 18)
    index.sync(DEADLINE)  # what it was told to do happens all the same, and is known
    assert not any(path.exists() for path in paths)
    assert len(index) == 0
    assert not index._follower.order.held(page_key(0))


def test_not_while_scanning(bases: list[Path]) -> None:
    with GroupIndex.watch(*bases, isolation="thread", block=False) as index:
        with index._follower.lock:
            if index._follower.order.loading:
                with pytest.raises(NotReadyError):
                    Evictor(index).evict_oldest()
        index.wait_ready(DEADLINE)
