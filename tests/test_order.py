from __future__ import annotations

import struct
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nixl_index.order import Change, GroupOrder
from nixl_index.packed import Packing, Popped


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def order(clock: Clock) -> GroupOrder:
    """An open order with directories 0 and 1 on base 0, and 2 on base 1."""
    order = GroupOrder(clock)
    assert [order.add_directory(base) for base in (0, 0, 1)] == [0, 1, 2]
    order.open()
    return order


def recency(order: GroupOrder, key: str) -> int:
    order.check()
    return order.snapshot(key).recency_ns


def shards(order: GroupOrder, popped: Popped | None) -> set[tuple[int, str]]:
    order.check()
    assert popped is not None
    return {(directory, tail) for directory, tail, *_ in order.packing.rows(popped.packed)}


def test_upsert_tells_what_changed_and_moves_the_group(order: GroupOrder) -> None:
    assert order.upsert("a", "_k", 0, 10, 100) is Change.NEW
    assert order.upsert("b", "_k", 0, 15, 100) is Change.NEW
    assert order.upsert("a", "_k", 0, 10, 100) is Change.UNCHANGED
    assert list(order) == ["a", "b"]
    assert order.upsert("a", "_v", 1, 20, 100) is Change.NEW
    assert list(order) == ["b", "a"]
    assert order.upsert("a", "_v", 1, 20, 50) is Change.SETTLED
    assert (order.totals.count, order.totals.size, len(order)) == (3, 250, 2)
    assert order.upsert("a", "_v", 1, 12, 60) is Change.REWRITTEN
    assert list(order) == ["a", "b"]
    assert recency(order, "a") == 12
    assert (order.totals.count, order.totals.size) == (3, 260)


def test_the_oldest_is_popped_first_and_ties_go_by_key(order: GroupOrder) -> None:
    for key in ("c", "a", "b"):
        order.upsert(key, "_k", 0, 10, 1)
    order.upsert("z", "_k", 0, 9, 1)
    assert order.oldest() == "z"
    popped = []
    while (group := order.pop_oldest()) is not None:
        popped.append(group.key)
        order.check()
    assert popped == ["z", "a", "b", "c"]
    assert (order.totals.count, order.totals.size, len(order), order.oldest()) == (0, 0, 0, None)


def test_discard(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    order.upsert("a", "_v", 0, 20, 2)
    assert not order.discard("a", "_v", 1)
    assert not order.discard("b", "_v", 0)
    assert order.discard("a", "_v", 0)
    assert recency(order, "a") == 10
    assert order.discard("a", "_k", 0)
    assert "a" not in order
    order.check()


def test_a_touch_raises_never_lowers_and_outlasts_shards(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    order.upsert("a", "_v", 0, 20, 1)
    assert not order.touch("b", 50)
    assert order.touch("a", 5)
    assert recency(order, "a") == 20
    assert order.touch("a", 50)
    order.discard("a", "_v", 0)
    assert recency(order, "a") == 50
    order.upsert("a", "_k", 0, 5, 1)
    order.upsert("a", "_v", 0, 30, 1)
    assert recency(order, "a") == 50
    order.upsert("a", "_v", 0, 60, 1)
    assert recency(order, "a") == 60


def test_a_future_mtime_counts_as_of_when_it_was_first_seen(order: GroupOrder, clock: Clock) -> None:
    order.upsert("a", "_k", 0, 5_000, 1)
    assert recency(order, "a") == 1_000
    clock.now = 2_000
    assert order.upsert("a", "_k", 0, 5_000, 1) is Change.UNCHANGED
    assert order.upsert("a", "_k", 0, 5_000, 2) is Change.SETTLED
    assert recency(order, "a") == 1_000
    clock.now = 6_000
    order.upsert("a", "_v", 0, 500, 1)
    order.upsert("a", "_k", 0, 5_000, 3)
    assert recency(order, "a") == 1_000, "it stays so after its time has come"
    order.upsert("a", "_k", 0, 5_001, 3)
    assert recency(order, "a") == 5_001
    order.discard("a", "_k", 0)
    order.upsert("a", "_k", 0, 5_000, 1)
    assert recency(order, "a") == 5_000, "gone and come again: seen afresh"


def test_a_restored_future_mtime_does_not_come_to_the_fore(order: GroupOrder, clock: Clock) -> None:
    order.upsert("a", "_k", 0, 5_000, 1)
    popped = order.pop_oldest()
    assert popped is not None
    clock.now = 9_000
    order.restore(popped)
    assert recency(order, "a") == 1_000


def test_a_directory_that_is_not_known(order: GroupOrder) -> None:
    with pytest.raises(IndexError):
        order.upsert("a", "_k", 99, 1, 1)
    order.check()


def test_a_number_that_does_not_fit_changes_nothing(order: GroupOrder) -> None:
    with pytest.raises(struct.error):
        order.upsert("a", "_k", 0, 1 << 63, 1)
    order.check()


def test_too_many_directories(order: GroupOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nixl_index.totals.MAX_DIRECTORIES", 3)
    with pytest.raises(OverflowError):
        order.add_directory(0)
    order.check()


def test_loading_has_no_order_yet(clock: Clock) -> None:
    order = GroupOrder(clock)
    order.add_directory(0)
    for number in range(100):
        order.upsert(f"{number:02}", "_k", 0, (number * 37) % 100, 1)
    order.hold("50")
    order.touch("00", 1_000)
    assert order.loading
    for needs_order in (order.oldest, order.pop_oldest, lambda: iter(order)):
        with pytest.raises(RuntimeError, match="loading"):
            needs_order()
    removed = order.remove("99")
    assert removed is not None
    order.restore(removed)
    order.freeze(0)
    order.thaw(0)
    order.check()
    order.open()
    order.open()
    assert not order.loading
    order.check()
    loaded = sorted(order.keys() - {"50", "00"}, key=lambda key: int(key) * 37 % 100)
    assert list(order) == [*loaded, "00"]


def test_holds_nest_and_outlast_the_group(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    order.upsert("b", "_k", 0, 20, 1)
    order.hold("a")
    order.hold("a")
    order.hold("later")
    order.upsert("later", "_k", 0, 1, 1)
    order.upsert("a", "_v", 0, 15, 1)
    assert (list(order), len(order), order.totals.count) == (["b"], 3, 4)
    order.release("a")
    assert order.held("a")
    order.check()
    order.release("a")
    assert not order.held("a")
    assert list(order) == ["a", "b"]
    assert order.remove("later") is not None
    order.release("later")
    order.upsert("later", "_k", 0, 1, 1)
    assert order.oldest() == "later"
    with pytest.raises(KeyError):
        order.release("a")
    order.check()


def test_a_frozen_base_keeps_its_shards(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    order.upsert("a", "_v", 2, 20, 2)
    order.upsert("b", "_k", 2, 15, 4)
    order.upsert("c", "_k", 1, 30, 8)
    order.freeze(1)
    assert list(order) == ["a", "c"]
    assert order.oldest() == "a"
    popped = order.pop_oldest()
    assert popped is not None
    assert popped.recency_ns == 20
    assert shards(order, popped) == {(0, "_k")}
    assert shards(order, order.snapshot("a")) == {(2, "_v")}
    assert shards(order, order.pop_oldest()) == {(1, "_k")}
    assert order.pop_oldest() is None
    assert (
        order.totals.shards.get(0, 0),
        order.totals.shards.get(1, 0),
        order.totals.nbytes.get(1, 0),
        order.totals.shards.get(7, 0),
    ) == (0, 2, 6, 0)
    order.upsert("a", "_w", 0, 5, 1)
    assert list(order) == ["a"], "a live shard brings the group back"
    order.thaw(1)
    order.check()
    assert list(order) == ["b", "a"]


def test_what_is_stranded_keeps_a_touch_but_not_the_mtime_of_a_popped_shard(order: GroupOrder) -> None:
    for key in ("a", "b"):
        order.upsert(key, "_k", 0, 20, 1)
        order.upsert(key, "_v", 2, 10, 1)
    order.touch("b", 50)
    order.freeze(1)
    popped = [order.pop_oldest(), order.pop_oldest()]
    assert (recency(order, "a"), recency(order, "b")) == (10, 50)
    order.upsert("b", "_v", 2, 8, 1)
    order.discard("a", "_v", 2)
    order.check()
    for group in popped:
        assert group is not None
        order.restore(group)
    assert (recency(order, "a"), recency(order, "b")) == (20, 50)
    assert list(order) == ["a", "b"]


def test_held_and_stranded_at_once(order: GroupOrder) -> None:
    order.upsert("a", "_k", 2, 10, 1)
    order.freeze(1)
    order.upsert("b", "_k", 0, 20, 1)
    assert order.oldest() == "b"
    order.hold("a")
    order.release("a")
    order.hold("a")
    order.thaw(1)
    assert list(order) == ["b"]
    order.release("a")
    assert list(order) == ["a", "b"]
    order.check()


def test_restore_keeps_newer_truths(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    order.upsert("a", "_v", 0, 20, 2)
    order.touch("a", 100)
    popped = order.pop_oldest()
    assert popped is not None
    order.upsert("a", "_v", 0, 30, 8)
    order.restore(popped)
    assert recency(order, "a") == 100
    assert order.totals.size == 9
    order.remove("a")
    order.hold("a")
    order.restore(popped)
    assert order.oldest() is None
    order.check()


def test_unseen_are_the_shards_that_the_last_listing_missed(order: GroupOrder) -> None:
    for tail, directory in (("_k", 0), ("_v", 0), ("_k", 1)):
        order.upsert("a", tail, directory, 10, 1)
    assert order.unseen("a", {0, 1}) == []
    order.begin_listing(0)
    assert order.upsert("a", "_v", 0, 10, 1) is Change.UNCHANGED
    assert order.unseen("a", {0, 1}) == [(0, "_k")]
    assert order.unseen("a", {1}) == []
    assert order.unseen("b", {0}) == []


def test_the_wrap_of_the_mark_only_delays(order: GroupOrder) -> None:
    order.upsert("a", "_k", 0, 10, 1)
    for _ in range(256):
        order.begin_listing(0)
    assert order.unseen("a", {0}) == []
    order.begin_listing(0)
    assert order.unseen("a", {0}) == [(0, "_k")]


def test_a_group_keeps_one_copy_of_its_key(order: GroupOrder) -> None:
    order.upsert("key"[:2] + "1", "_k", 0, 10, 1)
    for step in range(4):
        order.upsert("key"[:2] + "1", f"_{step}", 0, 20 + step, 1)
        order.touch("key"[:2] + "1", 21 + step)
        order.discard("key"[:2] + "1", f"_{step}", 0)
        order.check()  # It asserts this identity.


@pytest.mark.parametrize("opened", [True, False])
def test_upsert_all_is_upsert_of_each(clock: Clock, opened: bool) -> None:
    """Whatever way it takes inside: tails known and new, groups known and new, of the past, the future and twice."""
    rows = [
        (key, tail, directory, mtime, 4096)
        for mtime in (30, 10, 2_000, 20)
        for key in ("abcd" if mtime == 2_000 else "abc")
        for tail in ("_k", "_v", "/whole")
        for directory in (0, 2)
        if (mtime + directory) % 3 or tail != "_v"
    ]
    orders = [GroupOrder(clock), GroupOrder(clock)]
    for order in orders:
        for base in (0, 0, 1):
            order.add_directory(base)
        if opened:
            order.open()
        order.hold("b")
    one_by_one, at_once = orders
    changes = [one_by_one.upsert(*row) for row in rows]
    assert at_once.upsert_all(rows) == changes
    assert set(changes) == {Change.NEW, Change.REWRITTEN}
    for order in orders:
        order.check()
    assert [at_once.snapshot(key) for key in "abcd"] == [one_by_one.snapshot(key) for key in "abcd"]
    assert (at_once.totals.shards, at_once.totals.nbytes) == (one_by_one.totals.shards, one_by_one.totals.nbytes)


def test_upsert_all_raises_the_recency_with_each_newer_shard(order: GroupOrder) -> None:
    order.upsert_all([("a", "_k", 0, 1, 4096), ("a", "_v", 0, 1, 4096)])  # the tails are known from now on
    order.upsert_all([("b", "_k", 0, 10, 4096), ("b", "_v", 0, 30, 4096), ("c", "_k", 0, 20, 4096)])
    assert list(order) == ["a", "c", "b"]
    assert recency(order, "b") == 30


def test_upsert_all_brings_a_stranded_group_back(order: GroupOrder) -> None:
    """A shard on a live base makes a group evictable all of whose shards were on a frozen one."""
    order.upsert_all([("a", "_k", 0, 10, 1), ("b", "_k", 2, 20, 1)])
    order.freeze(0)
    assert order.oldest() == "b", "the other one is stranded now"
    order.upsert_all([("a", "_k", 2, 5, 1)])
    order.check()
    assert list(order) == ["a", "b"]


def test_snapshot_of_an_unknown_key(order: GroupOrder) -> None:
    with pytest.raises(KeyError):
        order.snapshot("a")
    assert order.remove("a") is None


@dataclass
class Record:
    mtime: int
    size: int
    mark: int
    counts_as: int


@dataclass
class Entry:
    recency: int
    shards: dict[tuple[int, str], Record] = field(default_factory=dict)

    def newest(self) -> int:
        return max(record.counts_as for record in self.shards.values())

    def settle(self, before: int) -> None:
        """`before` was the newest mtime: what stood above it was a touch, and stays."""
        self.recency = max(self.newest(), self.recency) if self.recency > before else self.newest()


KEYS = st.sampled_from(["a", "b", "c"])
TAILS = st.sampled_from(["", "_k", "_v", "/whole"])
BASES = (0, 1, 1)
DIRECTORIES = st.sampled_from(range(len(BASES)))
TIMES = st.integers(0, 30)


class GroupOrderMachine(RuleBasedStateMachine):
    """A `GroupOrder` beside plain dicts that recompute everything."""

    @initialize(
        max_tails=st.integers(0, 3), opens=st.sampled_from((True, True, False)), frozen=st.sets(st.sampled_from((0, 1)))
    )
    def start(self, max_tails: int, opens: bool, frozen: set[int]) -> None:
        self.clock = Clock(15)
        self.order = GroupOrder(self.clock, Packing(max_tails))
        for base in BASES:
            self.order.add_directory(base)
        self.entries: dict[str, Entry] = {}
        self.popped: list[tuple[Popped, Entry]] = []
        self.holds: list[str] = []
        self.frozen = frozen
        for base in frozen:
            self.order.freeze(base)
        self.marks = [0] * len(BASES)
        self.loading = not opens
        if opens:
            self.order.open()

    def live(self, directory: int) -> bool:
        return BASES[directory] not in self.frozen

    def evictable(self) -> list[str]:
        keys = [
            key
            for key, entry in self.entries.items()
            if key not in self.holds and any(self.live(directory) for directory, _ in entry.shards)
        ]
        return sorted(keys, key=lambda key: (self.entries[key].recency, key))

    @rule(
        writes=st.lists(st.tuples(KEYS, TAILS, DIRECTORIES, TIMES, st.integers(0, 2)), min_size=1, max_size=6),
        how=st.sampled_from(("one by one", "in a batch", "all at once")),
    )
    def upsert(self, writes: list[tuple[str, str, int, int, int]], how: str) -> None:
        if how == "all at once":
            for write, change in zip(writes, self.order.upsert_all(writes), strict=True):
                self.note(*write, change)
            return
        with self.order.batch() if how == "in a batch" else nullcontext():
            for write in writes:
                self.write(*write)

    @precondition(lambda self: not self.loading)
    @rule(start=st.integers(0, 3), limit=st.integers(1, 3))
    def after(self, start: int, limit: int) -> None:
        keys = self.evictable()
        rank = None if start >= len(keys) else (self.entries[keys[start]].recency, keys[start])
        expected = keys if rank is None else keys[start + 1 :]
        seen = [popped.key for popped in self.order.after(rank, len(self.entries) + 1) if popped.key in keys]
        assert seen == expected
        assert len(self.order.after(rank, limit)) <= limit

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), mtime=TIMES, size=st.integers(0, 2))
    def rewrite(self, data: st.DataObject, mtime: int, size: int) -> None:
        key, directory, tail = self.draw_shard(data)
        self.write(key, tail, directory, mtime, size)

    def draw_shard(self, data: st.DataObject) -> tuple[str, int, str]:
        shards = [(key, *shard) for key, entry in self.entries.items() for shard in entry.shards]
        return data.draw(st.sampled_from(shards))

    def write(self, key: str, tail: str, directory: int, mtime: int, size: int) -> None:
        self.note(key, tail, directory, mtime, size, self.order.upsert(key, tail, directory, mtime, size))

    def note(self, key: str, tail: str, directory: int, mtime: int, size: int, change: Change) -> None:
        """What `upsert` said it did is what had to be done."""
        shard = (directory, tail)
        entry = self.entries.setdefault(key, Entry(0))
        old = entry.shards.get(shard)
        record = Record(mtime, size, self.marks[directory], min(mtime, self.clock.now))
        before = entry.newest() if entry.shards else entry.recency
        entry.shards[shard] = record
        if old is None:
            assert change is Change.NEW
            entry.settle(before)
        elif old.mtime != mtime:
            assert change is Change.REWRITTEN
            entry.settle(before)
        else:
            assert change is (Change.UNCHANGED if old.size == size else Change.SETTLED)
            record.counts_as = old.counts_as

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        key, directory, tail = self.draw_shard(data)
        record = self.entries[key].shards[directory, tail]
        assert self.order.upsert(key, tail, directory, record.mtime, record.size) is Change.UNCHANGED
        record.mark = self.marks[directory]

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def discard_known(self, data: st.DataObject) -> None:
        key, directory, tail = self.draw_shard(data)
        self.discard(key, tail, directory)

    @rule(key=KEYS, tail=TAILS, directory=DIRECTORIES)
    def discard(self, key: str, tail: str, directory: int) -> None:
        entry = self.entries.get(key)
        known = entry is not None and (directory, tail) in entry.shards
        assert self.order.discard(key, tail, directory) is known
        if entry is None or not known:
            return
        before = entry.newest()
        del entry.shards[directory, tail]
        if entry.shards:
            entry.settle(before)
        else:
            del self.entries[key]

    @rule(key=KEYS, recency=st.integers(0, 40))
    def touch(self, key: str, recency: int) -> None:
        entry = self.entries.get(key)
        assert self.order.touch(key, recency) is (entry is not None)
        if entry is not None:
            entry.recency = max(entry.recency, recency)

    @precondition(lambda self: not self.loading)
    @rule(by_key=st.booleans())
    def pop_oldest(self, by_key: bool) -> None:
        keys = self.evictable()
        popped = self.order.pop(keys[0]) if by_key and keys else self.order.pop_oldest()
        if not keys:
            assert popped is None
            return
        entry = self.entries.pop(keys[0])
        taken = Entry(entry.recency, {shard: entry.shards[shard] for shard in entry.shards if self.live(shard[0])})
        rest = Entry(entry.recency, {shard: entry.shards[shard] for shard in entry.shards if not self.live(shard[0])})
        if rest.shards:
            rest.settle(entry.newest())
            self.entries[keys[0]] = rest
        assert popped is not None
        assert (popped.key, popped.recency_ns) == (keys[0], entry.recency)
        assert self.unpack(popped.packed) == self.plain(taken)
        self.popped.append((popped, taken))

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        popped = self.order.remove(key)
        entry = self.entries.pop(key, None)
        assert (popped is None) == (entry is None)
        if popped is not None and entry is not None:
            self.popped.append((popped, entry))

    @precondition(lambda self: self.popped)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        popped, taken = data.draw(st.sampled_from(self.popped))
        self.order.restore(popped)
        entry = self.entries.setdefault(popped.key, Entry(0))
        for shard, record in taken.shards.items():
            counts_as = min(record.mtime, popped.recency_ns)
            entry.shards.setdefault(shard, Record(record.mtime, record.size, record.mark, counts_as))
        entry.recency = max(entry.recency, popped.recency_ns)

    @rule(key=KEYS)
    def hold(self, key: str) -> None:
        self.order.hold(key)
        self.holds.append(key)

    @precondition(lambda self: self.holds)
    @rule()
    def release(self) -> None:
        self.order.release(self.holds.pop(0))

    @rule(base=st.sampled_from((0, 1)))
    def freeze(self, base: int) -> None:
        self.order.freeze(base)
        self.frozen.add(base)

    @rule(base=st.sampled_from((0, 1)))
    def thaw(self, base: int) -> None:
        self.order.thaw(base)
        self.frozen.discard(base)

    @rule(directory=DIRECTORIES, times=st.sampled_from((1, 1, 1, 255)))
    def begin_listing(self, directory: int, times: int) -> None:
        for _ in range(times):
            self.order.begin_listing(directory)
        self.marks[directory] = (self.marks[directory] + times) % 256

    @rule(now=TIMES)
    def set_clock(self, now: int) -> None:
        self.clock.now = now

    @precondition(lambda self: self.loading)
    @rule()
    def open(self) -> None:
        self.order.open()
        self.loading = False

    def unpack(self, packed: bytes) -> dict[tuple[int, str], list[int]]:
        return {(directory, tail): rest for directory, tail, *rest in map(tuple, self.order.packing.rows(packed))}

    def plain(self, entry: Entry) -> dict[tuple[int, str], list[int]]:
        return {shard: [record.mtime, record.size, record.mark] for shard, record in entry.shards.items()}

    @invariant()
    def agrees(self) -> None:
        self.order.check()
        assert self.order.keys() == self.entries.keys()
        assert len(self.order) == len(self.entries)
        for key, entry in self.entries.items():
            snapshot = self.order.snapshot(key)
            assert snapshot.recency_ns == entry.recency
            assert self.unpack(snapshot.packed) == self.plain(entry)
            assert sorted(self.order.unseen(key, {0, 2})) == sorted(
                shard
                for shard, record in entry.shards.items()
                if shard[0] in (0, 2) and record.mark != self.marks[shard[0]]
            )
        sizes: dict[int, list[int]] = {0: [], 1: []}
        for entry in self.entries.values():
            for (directory, _), record in entry.shards.items():
                sizes[BASES[directory]].append(record.size)
        for base, all_sizes in sizes.items():
            assert self.order.totals.shards.get(base, 0) == len(all_sizes)
            assert self.order.totals.nbytes.get(base, 0) == sum(all_sizes)
        assert all(self.order.held(key) is (key in self.holds) for key in ("a", "b", "c"))
        if not self.loading:
            assert list(self.order) == self.evictable()

    @precondition(lambda self: not self.loading)
    @rule()
    def oldest(self) -> None:
        assert self.order.oldest() == next(iter(self.evictable()), None)


TestGroupOrderMachine = GroupOrderMachine.TestCase
TestGroupOrderMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
