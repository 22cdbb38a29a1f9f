"""The index that users hold: `GroupIndex.watch(...)`, and everything that asks it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from time import monotonic, time_ns
from typing import TypeVar

from nixl_index import records
from nixl_index.arguments import absolute, check_seconds, left
from nixl_index.audit import Audit
from nixl_index.errors import ClosedError, ForkedError, FrozenError, NixlIndexError, NotReadyError
from nixl_index.follower import Follower
from nixl_index.group import Group
from nixl_index.health import Health
from nixl_index.keys import KeyScheme
from nixl_index.layout import Layout
from nixl_index.lifecycle import register
from nixl_index.link import Isolation
from nixl_index.observer import ShardObserver
from nixl_index.packed import Popped
from nixl_index.pins import Pin
from nixl_index.progress import OnProgress
from nixl_index.torn import is_torn

T = TypeVar("T")

_KEYS_AT_ONCE = 64
"""How many groups are touched or looked at under one hold of the lock: about a millisecond."""

__all__ = ["GroupIndex"]


class GroupIndex:
    """An in-memory index of the groups below some base dirs, ordered by recency, kept true while files come and go.

    Made by `watch`; a context manager that closes itself. All methods may be called from any thread. They take a lock
    for O(log n) work and do no file-system call; those that wait for the scout say so. n is the number of groups.
    """

    def __init__(self, follower: Follower, observer: ShardObserver) -> None:
        """Use `watch`."""
        self._follower = follower
        self._observer = observer
        self._closing = threading.Lock()
        self._auditing = threading.Lock()
        self._closed = False
        register(self)

    @classmethod
    def watch(
        cls,
        *paths: str | os.PathLike[str],
        scheme: Callable[[str], str | None] | None = None,
        layout: Layout | None = None,
        block: bool = True,
        isolation: Isolation = "process",
        poll_interval: float = 30.0,
        rescan_interval: float | None = 3600.0,
        reads: bool = False,
        on_progress: OnProgress | None = None,
    ) -> GroupIndex:
        """Watch base dirs, scan them, and return the index, started.

        `scheme` reduces a file name to a group key, or to None where the name is to be ignored; `KeyScheme()` unless
        given. `layout` says which directories below a base are buckets; two hex digits unless given. With
        `block=False` the call returns before the first scan is over; `wait_ready` waits for it. `isolation` is where
        the scout runs: in a process of its own, or, for tests and small trees, in a thread. A directory that cannot
        be watched is listed every `poll_interval` seconds; everything is listed again, evenly, within
        `rescan_interval` seconds (None: never). With `reads=True` a read of a shard moves its group to the young end,
        a second later at most: every close of a file then makes an event, and counts as one where nothing was written.

        `on_progress` is called with a `Progress` while the first scan runs, at most ten times a second, and once when
        it is over, before the index is ready. It runs on a thread of the index, without the lock; the scan waits for
        it, so it has to be short and must not wait for the index. If it raises, that is logged, once.

        Raises FileNotFoundError, NotADirectoryError or PermissionError for a base dir that cannot be watched,
        ValueError for one given twice or inside another, TypeError for arguments of the wrong kind, OSError where no
        inotify instance can be had, TimeoutError where a base does not answer in 30 s. Nothing is left running then.
        """
        if not paths:
            raise ValueError("watch() needs a base dir")
        bases = [absolute(path) for path in paths]
        scheme = KeyScheme() if scheme is None else scheme
        if not callable(scheme):
            raise TypeError(f"scheme is {scheme!r}: give a KeyScheme, or a function from a file name to a key or None")
        layout = Layout() if layout is None else layout
        if not isinstance(layout, Layout):
            raise TypeError(f"layout is {layout!r}: give a Layout")
        if isolation not in ("process", "thread"):
            raise ValueError(f"isolation is {isolation!r}: give 'process' or 'thread'")
        if on_progress is not None and not callable(on_progress):
            raise TypeError(f"on_progress is {on_progress!r}: give a function that takes a Progress")
        intervals = (
            check_seconds("poll_interval", poll_interval),
            0.0 if rescan_interval is None else check_seconds("rescan_interval", rescan_interval),
        )
        observer = ShardObserver(lambda: follower.configure(), isolation)
        follower = Follower(bases, scheme, layout, intervals, bool(reads), observer, on_progress=on_progress)
        index = cls(follower, observer)
        observer.schedule(follower, os.pathsep.join(bases), recursive=True)
        try:
            observer.start()
            if block:
                index.wait_ready()
        except BaseException:
            index.close()
            raise
        return index

    def __enter__(self) -> GroupIndex:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching: end the threads and the scout. Blocks until they have ended, up to some seconds for a scout
        that hangs on a disk. Idempotent. Every other method but `health` raises ClosedError afterwards."""
        if isinstance(self._follower.failure, ForkedError):
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._observer.stop()
            if self._observer.ident is not None and self._observer is not threading.current_thread():
                self._observer.join()
            self._follower.fail(ClosedError("the index is closed"))

    # --- waiting ---

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the first scan is over. Raises TimeoutError after `timeout` seconds."""
        if not self._follower.ready.wait(timeout):
            raise TimeoutError(f"the first scan was not over in {timeout} s")
        self._check()

    def sync(self, timeout: float | None = None) -> None:
        """Wait until every change that was made before this call is in the index; after a loss of events, until
        everything was listed again. Blocks; costs the scout one drain of its events.

        Sees what closes, renames, removes or touches a file; not who reads it. Raises TimeoutError after `timeout`
        seconds, FrozenError where a base is out of sight.
        """
        self._ask_and_sweep(records.Sync, timeout, "sync")
        for base in self._follower.bases:
            if base.frozen:
                raise FrozenError(f"base dir {base.path!r} is frozen: {base.frozen}")

    def rescan(self, path: str | os.PathLike[str] | None = None, timeout: float | None = None) -> None:
        """List everything again, or one base dir, and wait until that is done: a reconcile. A frozen base that is
        named is taken over as it stands at its path now. Raises ValueError for a path that is no base dir, TimeoutError
        after `timeout` seconds."""
        number = -1
        if path is not None:
            wanted = (absolute(path), os.path.realpath(path))
            number = next((n for n, base in enumerate(self._follower.bases) if base.path in wanted), -1)
            if number < 0:
                raise ValueError(f"{os.fspath(path)!r} is none of the base dirs of this index")
        self._ask_and_sweep(lambda ask: records.Scan(ask, number), timeout, "rescan")

    def audit(self, timeout: float | None = None) -> Audit:
        """List everything, and return where index and disk differed. What differed is mended, as by `rescan`: the
        listing is the truth. Changes that go on meanwhile are no differences. Blocks for a full scan. Raises as `sync`,
        and FrozenError where a base cannot be compared."""
        until = None if timeout is None else monotonic() + timeout
        follower = self._follower
        self.sync(timeout)
        with self._auditing:
            follower.writer.missed.audit()
            try:
                self.rescan(timeout=left(until))
                self.sync(left(until))
            finally:
                found = follower.writer.missed.end_audit()
        paths: dict[str, list[str]] = {"missing": [], "extra": [], "rewritten": [], "settled": []}
        for (directory, name), kind in found:
            paths[kind].append(f"{follower.places[directory].path}/{name}")
        return Audit(**{kind: tuple(sorted(listed)) for kind, listed in paths.items()})

    def _ask_and_sweep(self, command: Callable[[int], records.Message], timeout: float | None, what: str) -> None:
        self._check()
        until = None if timeout is None else monotonic() + timeout
        self._follower.asks.ask(command).wait(until, what)
        if not self._follower.sweeper.wait(until):
            raise TimeoutError(f"{what}: not every suspect was looked at in time")
        self._check()

    # --- asking ---

    def __len__(self) -> int:
        """The number of groups. O(1)."""
        self._check()
        return len(self._follower.order)

    def __contains__(self, key: object) -> bool:
        """Is there a group with this key? O(1)."""
        self._check()
        return key in self._follower.order

    def __getitem__(self, key: str) -> Group:
        """The group with this key, as it is now. O(1). Raises KeyError."""
        return self._follower.group(self._locked(lambda: self._follower.order.snapshot(key)))

    def __iter__(self) -> Iterator[Group]:
        """The groups that can be evicted, oldest first, as of now: later changes are not seen. O(n), in one go."""
        snapshots = self._locked(lambda: [self._follower.order.snapshot(key) for key in self._follower.order])
        return map(self._follower.group, snapshots)

    def oldest(self) -> Group | None:
        """The group that would be evicted next; None where there is none. O(log n)."""

        def look() -> Popped | None:
            key = self._follower.order.oldest()
            return None if key is None else self._follower.order.snapshot(key)

        popped = self._locked(look)
        return popped and self._follower.group(popped)

    def pop_oldest(self) -> Group | None:
        """Take the oldest group out of the index, and leave its files alone: unlinking them is the caller's. None where
        there is no group that can be evicted. O(log n). An `Evictor` does both, and checks before it unlinks."""
        popped = self._locked(self._follower.order.pop_oldest)
        return popped and self._follower.group(popped)

    def restore(self, group: Group) -> None:
        """Put back a group that was popped and not unlinked, with its recency. The scout then looks at each of its
        shards, so that what changed meanwhile is told. O(log n). Does not block. Raises ValueError for a group of
        another index."""
        self._check()
        if not group.comes_from(self._follower.order.packing):
            raise ValueError(f"{group!r} does not come from this index")
        popped = Popped(group.key, group.recency_ns, group.packed)
        with self._follower.lock:
            self._follower.order.restore(popped)
        self._follower.look_at(popped)

    def touch(self, keys: Iterable[str], recency_ns: int | None = None) -> int:
        """Move groups to the young end, as if written at `recency_ns` (now, unless given; in ns): they were read. Never
        makes a group older; keys that are not known are fine. Returns how many were known. O(log n) a key, under the
        lock for about a millisecond at a time. Does not block on the scout, and is forgotten when the index closes."""
        self._check()
        if isinstance(keys, str):
            raise TypeError(f"keys is {keys!r}: give a collection of group keys")
        when, touch, known = time_ns() if recency_ns is None else recency_ns, self._follower.order.touch, 0
        rest = iter(keys)
        while some := list(islice(rest, _KEYS_AT_ONCE)):
            with self._follower.lock:
                known += sum([touch(key, when) for key in some])
        return known

    def pin(self, keys: Iterable[str]) -> Pin:
        """Keep groups from being evicted or popped, until the returned `Pin` is released; use it with `with`. Pins
        nest. A key that is not known yet is pinned all the same; one whose eviction is under way is not, which
        `Pin.keys` tells. O(log n) a key."""
        self._check()
        if isinstance(keys, str):
            raise TypeError(f"keys is {keys!r}: give a collection of group keys")
        return Pin(keys, self._follower.lock, self._follower.order, self._follower.writer.in_flight)

    def torn(self, ranks: Collection[int] | None = None) -> Iterator[Group]:
        """The groups that lack a rank that they should have: a file name's `_{rank}_{size}` says that `size` ranks
        exist. `ranks` are those that this host stores, where several hosts share the work; all unless given.
        O(shards); the lock is taken for a few groups at a time, so that the index may change meanwhile."""
        follower = self._follower
        keys = iter(self._locked(lambda: list(follower.order.keys())))
        while some := list(islice(keys, _KEYS_AT_ONCE)):
            with follower.lock:
                popped = [follower.order.snapshot(key) for key in some if key in follower.order]
            yield from (follower.group(one) for one in popped if is_torn(follower.order.packing, one.packed, ranks))

    @property
    def nbytes(self) -> int:
        """The disk bytes of all shards. O(bases)."""
        self._check()
        return self._follower.order.totals.size

    @property
    def shards(self) -> int:
        """The number of shards. O(bases)."""
        self._check()
        return self._follower.order.totals.count

    def health(self) -> Health:
        """How the index is. O(bases), without a system call; never raises, not even when closed."""
        return Health.of(self._follower, self._observer, self._closed)

    def _eviction_side(self) -> Follower:
        """What an `Evictor` works with. Raises what keeps the index from evicting."""
        return self._locked(lambda: self._follower)

    def _locked(self, work: Callable[[], T]) -> T:
        """Work on an order that is complete, under the lock."""
        self._check()
        if self._follower.order.loading:
            raise NotReadyError("the first scan is not over: call wait_ready() first")
        with self._follower.lock:
            return work()

    def _abandon(self) -> None:
        """In a forked child: refuse to answer, and let go of the copies of the parent's descriptors."""
        self._follower.failure = ForkedError("this index belongs to the parent process: open another one here")
        self._observer.abandon()

    def _check(self) -> None:
        """Raise what keeps the index from answering truly."""
        failure = self._follower.failure
        if failure:
            raise failure
        if self._closed:
            raise ClosedError("the index is closed")
        if not self._observer.is_alive():
            raise NixlIndexError("the observer's thread has ended")
