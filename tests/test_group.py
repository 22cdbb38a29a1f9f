from __future__ import annotations

import pickle

import pytest

from nixl_index.group import Group, Place, Shard
from nixl_index.packed import Packing

PLACES = [
    Place(0, "/disk0", "/disk0/0a", ""),
    Place(1, "/disk1", "/disk1/tenant/0b", "tenant/"),
]


def make(key: str, *rows: tuple[int, str, int, int], recency_ns: int = 50, packing: Packing | None = None) -> Group:
    packing = packing or Packing()
    packed = b""
    for row in rows:
        packed, _ = packing.put(packed, *row, 0)
    return Group(key, recency_ns, packed, PLACES, packing)


def test_a_group_unpacks_its_shards_sorted_by_path() -> None:
    group = make("abc", (0, "_v", 20, 4096), (0, "_k", 30, 8192))
    assert group.shards == (
        Shard("/disk0/0a/abc_k", "/disk0", 30, 8192),
        Shard("/disk0/0a/abc_v", "/disk0", 20, 4096),
    )
    assert group.shards is group.shards
    assert group.paths == ("/disk0/0a/abc_k", "/disk0/0a/abc_v")
    assert [shard.name for shard in group.shards] == ["abc_k", "abc_v"]
    assert (group.key, group.recency_ns, group.mtime_ns, group.disk_bytes, len(group)) == ("abc", 50, 30, 12288, 2)
    assert group.rows == [(0, "abc_v", 20, 4096), (0, "abc_k", 30, 8192)]


def test_the_levels_above_are_no_part_of_the_file_name() -> None:
    assert make("tenant/abc", (1, "_k", 1, 0)).paths == ("/disk1/tenant/0b/abc_k",)
    assert make("tenant/abc", (1, "", 1, 0)).paths == ("/disk1/tenant/0b/abc",)


def test_a_tail_with_a_slash_is_the_whole_name() -> None:
    assert make("any key", (0, "/model-abc.bin", 1, 0)).paths == ("/disk0/0a/model-abc.bin",)


def test_equal_by_key_recency_and_shards_whatever_the_order_they_came_in() -> None:
    packing = Packing()
    group = make("abc", (0, "_k", 1, 2), (0, "_v", 3, 4), packing=packing)
    same = make("abc", (0, "_v", 3, 4), (0, "_k", 1, 2))
    assert group == same
    assert hash(group) == hash(same)
    assert group != make("abd", (0, "_k", 1, 2), (0, "_v", 3, 4))
    assert group != make("abc", (0, "_k", 1, 2), (0, "_v", 3, 4), recency_ns=51)
    assert group != make("abc", (0, "_k", 1, 2))
    assert group != make("abc", (0, "_k", 1, 2), (0, "_v", 3, 5))
    assert group != "abc"


def test_a_pickled_group_is_equal_but_has_no_directory_ids() -> None:
    group = make("tenant/abc", (1, "_k", 1, 2), (0, "/a\udcff", 3, 4))
    copy = pickle.loads(pickle.dumps(group))
    assert copy == group
    assert (len(copy), copy.disk_bytes, copy.mtime_ns, repr(copy)) == (2, 6, 3, repr(group))
    with pytest.raises(ValueError, match="no directory ids"):
        _ = copy.rows


@pytest.mark.parametrize("name", ["key", "recency_ns", "shards", "anything"])
def test_a_group_is_immutable(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(make("abc", (0, "_k", 1, 2)), name, None)


def test_repr_is_short() -> None:
    assert repr(make("abc", (0, "_k", 1, 2))) == "<Group 'abc': 1 shards, recency_ns=50>"
    assert repr(make("0123456789" * 6 + "abcd", (0, "_k", 1, 2))) == (
        "<Group '0123456789012345...9abcd': 1 shards, recency_ns=50>"
    )


def test_a_group_can_be_made_from_shards() -> None:
    shards = [Shard("/b/2", "/b", 1, 1), Shard("/b/1", "/b", 2, 2)]
    assert Group.of("abc", 2, shards).shards == (shards[1], shards[0])
