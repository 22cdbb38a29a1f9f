from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nixl_index.packed import MAX_DIRECTORIES, MAX_TAILS, Packing, Row


def pack(packing: Packing, rows: list[Row]) -> bytes:
    packed = b""
    for row in rows:
        packed, old = packing.put(packed, *row)
        assert old is None
    return packed


def test_put_adds_overwrites_and_returns_the_same_object_when_nothing_changes() -> None:
    packing = Packing()
    packed, old = packing.put(b"", 3, "_k", 100, 4096, 7)
    assert old is None
    assert packing.rows(packed) == [(3, "_k", 100, 4096, 7)]
    same, old = packing.put(packed, 3, "_k", 100, 4096, 7)
    assert same is packed
    assert old == (100, 4096)
    marked, old = packing.put(packed, 3, "_k", 100, 4096, 8)
    assert old == (100, 4096)
    assert packing.rows(marked) == [(3, "_k", 100, 4096, 8)]
    rewritten, old = packing.put(marked, 3, "_k", 90, 0, 8)
    assert old == (100, 4096)
    assert packing.rows(rewritten) == [(3, "_k", 90, 0, 8)]
    assert packing.rows(packed) == [(3, "_k", 100, 4096, 7)], "an older snapshot stays as it was"


def test_a_shard_is_its_directory_and_its_tail() -> None:
    packing = Packing()
    rows = [(0, "_k", 1, 2, 0), (1, "_k", 3, 4, 0), (0, "_v", 5, 6, 0), (MAX_DIRECTORIES - 1, "", -7, 8, 255)]
    packed = pack(packing, rows)
    assert packing.rows(packed) == rows
    assert packing.count(packed) == 4
    assert packing.newest(packed) == 5
    assert packing.sum_bytes(packed) == 20
    assert packing.weights(packed) == [(0, 2), (1, 4), (0, 6), (MAX_DIRECTORIES - 1, 8)]


def test_drop() -> None:
    packing = Packing()
    packed = pack(packing, [(0, "_k", 1, 2, 0), (0, "_v", 3, 4, 0)])
    assert packing.drop(packed, 1, "_k") == (packed, None)
    assert packing.drop(packed, 0, "_never seen") == (packed, None)
    rest, old = packing.drop(packed, 0, "_k")
    assert old == (1, 2)
    assert packing.rows(rest) == [(0, "_v", 3, 4, 0)]
    assert packing.drop(rest, 0, "_v") == (b"", (3, 4))


def test_an_identity_that_straddles_two_records_is_not_a_hit() -> None:
    packing = Packing()
    for tail in ("_0", "_1", "_2"):
        packing.put(b"", 0, tail, 0, 0, 0)
    # The id of tail `_2` in directory 0 is the bytes 2 0 0 0 0 0 0: they stand in the disk bytes 2 of another shard.
    packed = pack(packing, [(0, "_0", 0, 2, 0), (0, "_1", 2, 2, 0)])
    assert packed.find(struct.pack("<II", 2, 0)[:7]) > 0
    assert not packing.has(packed, 0, "_2")
    assert packing.drop(packed, 0, "_2") == (packed, None)
    packed, old = packing.put(packed, 0, "_2", 9, 9, 0)
    assert old is None
    assert packing.put(packed, 0, "_2", 9, 9, 0) == (packed, (9, 9))
    assert packing.count(packed) == 3


def test_whole_names_are_private_to_their_group() -> None:
    packing = Packing(max_tails=1)
    rows = [(0, "/a", 1, 1, 0), (1, "/a", 2, 1, 0), (0, "_k", 3, 1, 0), (0, "/b", 4, 1, 0), (0, "/c", 5, 1, 0)]
    packed = pack(packing, rows)
    assert packing.rows(packed) == rows
    assert packing.put(packed, 0, "/b", 4, 1, 0)[0] is packed
    other = pack(packing, [(0, "/c", 1, 1, 0)])
    assert packing.rows(other) == [(0, "/c", 1, 1, 0)], "ids are the group's own"
    for gone in rows:
        rest, old = packing.drop(packed, gone[0], gone[1])
        assert old == gone[2:4]
        assert packing.rows(rest) == [row for row in rows if row != gone]
    assert not packing.has(packed, 1, "/b")


def test_a_full_table_makes_tails_private_and_keeps_what_was_interned() -> None:
    packing = Packing(max_tails=2)
    interned = pack(packing, [(0, "_k", 1, 1, 0), (0, "_v", 1, 1, 0)])
    rows = [(0, f"_{number}", number, 1, 0) for number in range(10)]
    assert packing.rows(pack(packing, rows)) == rows
    assert packing.rows(interned) == [(0, "_k", 1, 1, 0), (0, "_v", 1, 1, 0)]
    assert type(interned) is bytes


def test_foreign_names_do_not_fill_the_table() -> None:
    packing = Packing()
    for number in range(MAX_TAILS + 100):
        packing.put(b"", 0, f"/{number}", 0, 0, 0)
    packed, _ = packing.put(b"", 0, "_k", 0, 0, 0)
    assert type(packed) is bytes


@pytest.mark.parametrize("tail", ["_{}", "/{}"])
def test_ten_thousand_shards(tail: str) -> None:
    packing = Packing()
    rows = [(number % 300, tail.format(number // 10), number, 10, 1) for number in range(10_000)]
    packed = pack(packing, rows)
    assert packing.rows(packed) == rows
    assert (packing.count(packed), packing.newest(packed), packing.sum_bytes(packed)) == (10_000, 9_999, 100_000)
    rest, _ = packing.drop(packed, *rows[5_000][:2])
    assert packing.rows(rest) == rows[:5_000] + rows[5_001:]


def test_split() -> None:
    packing = Packing()
    rows = [(0, "/a", 1, 1, 0), (1, "_k", 2, 1, 0), (2, "/b", 3, 1, 0), (1, "/c", 4, 1, 0)]
    wanted, others = packing.split(pack(packing, rows), lambda directory: directory == 1)
    assert packing.rows(wanted) == [rows[1], rows[3]]
    assert packing.rows(others) == [rows[0], rows[2]]
    assert type(packing.split(pack(packing, rows[1:3]), {1}.__contains__)[0]) is bytes


@pytest.mark.parametrize(("directory", "mtime_ns"), [(-1, 0), (0, 1 << 63)])
def test_a_number_that_does_not_fit_raises(directory: int, mtime_ns: int) -> None:
    with pytest.raises(struct.error):
        Packing().put(b"", directory, "_k", mtime_ns, 0, 0)


SMALL = st.sampled_from([0, 1, 2, 3, 1 << 24, 1 << 40, (1 << 63) - 1])
STEPS = st.tuples(
    st.booleans(),
    st.sampled_from([0, 1, 2, 1 << 16]),
    st.sampled_from(["", "_k", "_v", "_w", "/a", "/b"]),
    SMALL,
    SMALL,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(0, 4))
def test_packing_is_a_dict(steps: list[tuple[bool, int, str, int, int]], max_tails: int) -> None:
    packing = Packing(max_tails)
    model: dict[tuple[int, str], tuple[int, int]] = {}
    packed = b""
    snapshots: list[tuple[bytes, list[Row]]] = []

    def rows() -> Iterator[Row]:
        return ((directory, tail, mtime, size, 9) for (directory, tail), (mtime, size) in model.items())

    for adds, directory, tail, mtime_ns, disk_bytes in steps:
        if adds:
            packed, old = packing.put(packed, directory, tail, mtime_ns, disk_bytes, 9)
            assert old == model.get((directory, tail))
            model[directory, tail] = mtime_ns, disk_bytes
        else:
            packed, old = packing.drop(packed, directory, tail)
            assert old == model.pop((directory, tail), None)
        snapshots.append((packed, list(rows())))
    for snapshot, expected in snapshots:
        assert packing.rows(snapshot) == expected
