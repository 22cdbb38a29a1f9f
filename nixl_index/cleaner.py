"""The cleaner: keeps file systems, or a capacity, between two watermarks by evicting the oldest groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from time import monotonic, time_ns
from typing import cast

from nixl_index import records
from nixl_index.arguments import check_seconds
from nixl_index.asks import Answer
from nixl_index.budget import Deficit, DeficitBudget, SelectingBudget
from nixl_index.complaints import Complaints
from nixl_index.durations import Durations
from nixl_index.errors import ClosedError, FailedError, NotReadyError
from nixl_index.evict import Evictor
from nixl_index.health import CleanerHealth
from nixl_index.index import GroupIndex
from nixl_index.notifier import Callback, Notifier
from nixl_index.results import Eviction
from nixl_index.torn import is_torn
from nixl_index.watermarks import Volume, Watermarks, parse_bytes

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
"""How often the thread compares the index's bytes with the room that was left: two numbers of this process."""
_RETRY_SECONDS = 0.05
"""How long whoever got only some locks waits before it asks once more, and who let go of them twice as long."""
_REST_SECONDS = 1.0
"""After a tick that should have evicted and could not, growth alone brings no other one for so long."""
_ANSWER_SECONDS = 30.0


class Cleaner:
    """Evicts from an index, oldest groups first, as soon as usage is at `high` percent or above, down to `low`.

    A tick looks at each file system that has a base (several bases on one count once), and takes only groups with a
    shard on a hot one. It never takes more than the deficit that it measured. With `capacity` (bytes, or a text such
    as `512GiB`) the watermarks apply to the index's own disk bytes instead, whatever else is on the volumes; `min_free`
    bytes are kept free on each in any case. With `torn_after` seconds, groups that lack a rank (see
    `GroupIndex.torn`, also for `ranks`) and are that old go first.

    A thread, started by `start` or as a context manager, ticks every `interval` seconds, and as soon as the index grew
    by half of the room that was left. For each tick it takes a lock in each base dir, so that one process evicts there
    at a time; it skips the bases of which another process has it. `on_evict` is called as by `Evictor`, on a thread of
    its own: a slow one does not stop eviction.

    Raises ValueError or TypeError for settings that make no sense.
    """

    def __init__(
        self,
        index: GroupIndex,
        high: float = 80.0,
        low: float = 70.0,
        *,
        interval: float = 30.0,
        capacity: int | str | None = None,
        min_free: int | str | None = None,
        torn_after: float | None = None,
        ranks: Collection[int] | None = None,
        on_evict: Callback | None = None,
        dry_run: bool = False,
    ) -> None:
        self._index = index
        self._watermarks = Watermarks(high, low, 0 if min_free is None else parse_bytes("min_free", min_free))
        self._interval = check_seconds("interval", interval)
        self._capacity = None if capacity is None else parse_bytes("capacity", capacity)
        self._torn_after = None if torn_after is None else check_seconds("torn_after", torn_after)
        self._ranks = ranks
        self._dry_run = dry_run
        self._log = index._follower.log
        self._complaints = Complaints(index._follower)
        self._notifier = Notifier(on_evict, self._log) if on_evict else None
        self._evictor = Evictor(index, on_evict=self._notifier.put if self._notifier else None, dry_run=dry_run)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._ticking = threading.Lock()  # one tick at a time; held while the scout works, never by who only asks
        self._early: list[tuple[frozenset[int], float]] = []
        """Bases, and the index's bytes on them beyond which half of the room is gone that the last tick left."""
        self._in_vain = False
        self._evicted_torn = 0
        self._health = CleanerHealth(False, 0, 0, 0, {}, 0.0, "", 0, Durations())

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if not self._is_running():
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="nixl-index-cleaner", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after the tick that is under way. Blocks until then. Idempotent."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread and thread is not threading.current_thread():
            thread.join()
        if self._notifier:
            self._notifier.stop()

    def __enter__(self) -> Cleaner:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def health(self) -> CleanerHealth:
        """How the cleaner is. O(1), does not block."""
        return replace(self._health, running=self._is_running())

    def _is_running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    # --- a tick ---

    def tick(self) -> Eviction:
        """Measure, decide, evict: one round now. Blocks until the scout has answered. Returns what came of it; nothing
        where no file system is hot, or where nothing can be known or locked, which `health()` then says."""
        with self._ticking:
            begun = monotonic()
            problems: list[str] = []
            volumes = self.measure(problems)
            full = [(volume.bases, self._bytes_on(volume.bases) + self._watermarks.room(volume)) for volume in volumes]
            eviction = self._evict(volumes, problems)
            self._in_vain = not eviction and any(map(self._watermarks.deficit, volumes))
            left = [(bases, self._bytes_on(bases), limit) for bases, limit in full]
            # What came meanwhile can have it hot again, and what was rewritten then can go now: a reason to go on soon,
            # unless that would be in vain.
            helps = (eviction or eviction.skipped) and not self._dry_run
            self._early = [(bases, max(0 if helps else now, (now + limit) / 2)) for bases, now, limit in left]
            self._take_note(volumes, eviction, problems, monotonic() - begun)
            return eviction

    def measure(self, problems: list[str]) -> list[Volume]:
        """The volumes that the watermarks apply to; what is unknown is left out, and said in `problems`. Waits for the
        scout; raises TimeoutError where a disk does not answer in 30 s."""
        self._index._eviction_side()
        measured = cast("records.Measured", self._ask(records.Measure, "measure")).volumes
        by_device: dict[int, list[int]] = {}
        for number, (device, _, _, _, _, unknown) in enumerate(measured):
            self._complaints.usage(number, unknown, problems)
            if not unknown:
                by_device.setdefault(device, []).append(number)
        volumes = [Volume(frozenset(bases), *measured[bases[0]][1:5]) for bases in by_device.values()]
        return volumes if self._capacity is None else [*self._as_capacity(), *map(_without_usage, volumes)]

    def _as_capacity(self) -> Iterable[Volume]:
        assert self._capacity is not None
        bases = frozenset(range(len(self._index._follower.bases)))
        yield Volume(bases, self._capacity, self._capacity - self._index.nbytes)

    def _evict(self, volumes: list[Volume], problems: list[str]) -> Eviction:
        deficits = [self._watermarks.deficit(volume) for volume in volumes]
        fillable = self._complaints.hopeless(volumes, deficits)
        eviction = self._evict_all([deficit for deficit in deficits if deficit], problems)
        self._complaints.short(volumes, [None for _ in volumes] if problems else fillable)
        return eviction

    def _evict_all(self, deficits: list[Deficit], problems: list[str]) -> Eviction:
        if not deficits:
            return Eviction()
        totals = self._index._follower.order.totals
        try:
            refused = self._lock(problems)
            return self._evict_torn_first(
                DeficitBudget(deficits, lambda directory: totals.bases[directory], totals.frozen, refused)
            )
        finally:
            self._unlock()

    def _evict_torn_first(self, budget: DeficitBudget) -> Eviction:
        if self._torn_after is None:
            return self._evictor.evict(budget, None)
        before_ns = time_ns() - int(self._torn_after * 1e9)
        packing = self._index._follower.order.packing
        torn = self._evictor.evict(
            SelectingBudget(
                budget,
                lambda popped: popped.recency_ns < before_ns and is_torn(packing, popped.packed, self._ranks),
            ),
            None,
        )
        self._evicted_torn += 0 if self._dry_run else len(torn.evicted)
        gone = {group.key for group in torn.evicted}  # but in a dry run, where they are met once more
        return _joined(torn, self._evictor.evict(SelectingBudget(budget, lambda one: one.key not in gone), None))

    def _lock(self, problems: list[str]) -> frozenset[int]:
        """Take the lock of every base; returns those from which another process evicts now, which is said once."""
        bases = self._index._follower.bases
        # One order for all processes. Two that begin at once may each get some: the one that is behind lets go.
        numbers = [number for number, base in enumerate(bases) if not base.frozen and not self._dry_run]
        numbers.sort(key=lambda number: bases[number].path)
        refusals = self._ask_for_locks(numbers)
        if 0 < len(refusals) < len(numbers):
            is_behind = numbers[0] in refusals
            if is_behind:
                self._unlock()
            self._stopping.wait(_RETRY_SECONDS * (1 + is_behind))
            refusals = self._ask_for_locks(numbers)
        for number in numbers:
            self._complaints.lock(number, refusals.get(number, ""), problems)
        return frozenset(refusals)

    def _ask_for_locks(self, numbers: list[int]) -> dict[int, str]:
        """Why the locks of which of these bases are not to be had."""
        if not numbers:
            return {}
        locked = self._ask(lambda number: records.Lock(number, [[base] for base in numbers]), "lock")
        refusals = cast("records.Locked", locked).refusals
        return {base: why for base, why in zip(numbers, refusals, strict=True) if why}

    def _ask(self, command: Callable[[int], records.Message], what: str) -> Answer | None:
        """The scout's answer. Raises TimeoutError where none comes in time."""
        ask = self._index._follower.asks.ask(command)
        ask.wait(monotonic() + _ANSWER_SECONDS, what)
        return ask.answer

    def _unlock(self) -> None:
        if not self._dry_run:
            self._index._follower.asks.ask(lambda number: records.Lock(number, []))

    def usage(self, volumes: list[Volume]) -> dict[str, float]:
        """How full these are, in percent, by the paths of their base dirs."""
        bases = self._index._follower.bases
        return {bases[base].path: volume.usage for volume in reversed(volumes) for base in sorted(volume.bases)}

    def _bytes_on(self, bases: Iterable[int]) -> int:
        return self._index._follower.order.totals.on(bases)[1]

    def _take_note(self, volumes: list[Volume], eviction: Eviction, problems: list[str], seconds: float) -> None:
        before = self._health
        self._health = CleanerHealth(
            running=False,  # `health` knows
            ticks=before.ticks + 1,
            evicted_groups=before.evicted_groups + (0 if self._dry_run else len(eviction.evicted)),
            freed_bytes=before.freed_bytes + eviction.disk_bytes,
            usage={path: round(percent, 2) for path, percent in self.usage(volumes).items()},
            last_tick_seconds=seconds,
            last_error="; ".join(problems),
            evicted_torn_groups=self._evicted_torn,
            tick_durations=before.tick_durations.plus(seconds),
        )

    # --- the thread ---

    def _run(self) -> None:
        due, rested = 0.0, 0.0
        while not self._stopping.wait(_LOOK_SECONDS):
            now = monotonic()
            if now < due and not (now >= rested and self._grown()):
                continue
            due = now + self._interval
            try:
                self.tick()
                rested = now + _REST_SECONDS if self._in_vain else 0.0
                self._log.over("tick_failed")
            except (ClosedError, FailedError) as error:
                self._log.say(logger, "cleaner_ended", f"the cleaner ends: {error}")
                return
            except NotReadyError:
                due = 0.0
            except Exception as error:  # noqa: BLE001 - the next tick may do better
                rested = now + _REST_SECONDS
                self._health = replace(self._health, last_error=f"a tick failed: {error!r}")
                text = f"a tick of the cleaner failed: {error!r}"
                self._log.say(logger, "tick_failed", text, lasts=True, error=error)

    def _grown(self) -> bool:
        """Did the index grow by half of the room that a volume had left?"""
        return any(self._bytes_on(bases) > half for bases, half in self._early)


def _without_usage(volume: Volume) -> Volume:
    """For `min_free` alone: the watermarks apply to the capacity."""
    return Volume(volume.bases, 0, volume.available)


def _joined(one: Eviction, other: Eviction) -> Eviction:
    return Eviction(
        one.evicted + other.evicted,
        one.skipped + other.skipped,
        one.failed + other.failed,
        one.disk_bytes + other.disk_bytes,
    )
