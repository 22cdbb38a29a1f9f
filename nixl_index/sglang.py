"""The drop-in for SGLang's own L3 cleaner: the same constructor, calls and seams, on an index instead of rescans.

    from nixl_index.sglang import HiCacheL3Cleaner

in place of `from sglang.srt.mem_cache.storage.nixl.nixl_cleaner import HiCacheL3Cleaner` is all that changes.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

from nixl_index.budget import CountBudget, SelectingBudget
from nixl_index.cleaner import Cleaner
from nixl_index.evict import Evictor
from nixl_index.index import GroupIndex
from nixl_index.keys import KeyScheme
from nixl_index.logs import EventLog
from nixl_index.packed import Packing, Popped

logger = logging.getLogger(__name__)

_SCHEME = KeyScheme()
_STATVFS = os.statvfs
_READY_SECONDS = 0.2
_STOP_SECONDS = 5.0


def _parse_group_key(name: str) -> str:
    """The group key of a file name; the name itself where it is no shard's."""
    return _SCHEME(name) or name


def _safe_unlink(path: str) -> tuple[bool, int]:
    """Unlink a file, and say whether that worked and how many bytes long it was. Does not raise OSError."""
    try:
        size = os.lstat(path).st_size
        os.unlink(path)
    except OSError as error:
        logger.debug("nixl_index: %r was not unlinked: %s", path, error)
        return False, 0
    return True, size


class HiCacheL3Cleaner:
    """Evicts old pages below `storage_dirs` (a path or a list of them) once a disk is `high_watermark` percent full,
    down to `low_watermark`; on tensor-parallel rank 0 only.

    `capacity_gb` (10^9 bytes) makes the watermarks apply to the cache's own bytes. `recheck_groups` matters only where
    `_disk_usage_pct` or `os.statvfs` was replaced, as tests do: so many groups go before they are asked again.
    `unlink_workers` is accepted and not used: the scout unlinks in line. Raises ValueError where the low watermark is
    not below the high one.
    """

    def __init__(
        self,
        storage_dirs: list[str] | str,
        tp_rank: int,
        *,
        high_watermark: float = 80.0,
        low_watermark: float = 70.0,
        interval_sec: float = 30.0,
        recheck_groups: int = 50,
        unlink_workers: int | None = None,
        capacity_gb: float | None = None,
    ) -> None:
        if low_watermark >= high_watermark:
            raise ValueError(
                f"low_watermark is {low_watermark!r} and high_watermark {high_watermark!r}: low has to be the lower one"
            )
        given = [storage_dirs] if isinstance(storage_dirs, str) else storage_dirs
        self.storage_dirs = list({os.path.realpath(path): path for path in reversed(given) if path}.values())[::-1]
        self.tp_rank = tp_rank
        self.high_watermark = high_watermark
        self.low_watermark = low_watermark
        self.interval_sec = interval_sec
        self.recheck_groups = max(1, recheck_groups)
        self.unlink_workers = unlink_workers
        self.capacity_gb = capacity_gb
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._index: GroupIndex | None = None
        self._cleaner: Cleaner | None = None
        self._log = EventLog(os.pathsep.join(self.storage_dirs))

    def start(self) -> None:
        """Start to follow and to clean, on rank 0. Does not block; idempotent."""
        if self.tp_rank != 0 or not self.storage_dirs or (self._thread and self._thread.is_alive()):
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, name="hicache-l3-cleaner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the index with it. Blocks for a tick that is under way, at most 5 s: it ends by itself
        then. Idempotent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread:
            thread.join(_STOP_SECONDS)

    def _disk_usage_pct(self, path: str) -> float:
        """How full the file system of `path` is, in percent; 0 where that is unknown."""
        try:
            stat = os.statvfs(path)
        except OSError:
            return 0.0
        return 100.0 * (stat.f_blocks - stat.f_bavail) / stat.f_blocks if stat.f_blocks else 0.0

    def _tick(self) -> bool:
        """One round now: was anything evicted? Without `start`, on an index of the disk as it is, closed again."""
        if self._index is not None and self._cleaner is not None:
            return self._clean(self._index, self._cleaner)
        directories = [path for path in self.storage_dirs if os.path.isdir(path)]
        if not directories:
            return False
        with GroupIndex.watch(*directories, rescan_interval=None) as index:
            return self._clean(index, self._make_cleaner(index))

    def _clean(self, index: GroupIndex, cleaner: Cleaner) -> bool:
        if self._usage_is_replaced():
            return self._clean_by_percent(index)
        return self.high_watermark <= 100 and bool(cleaner.tick())

    def _clean_by_percent(self, index: GroupIndex) -> bool:
        """Believe nobody but `_disk_usage_pct`, and ask it again after every so many groups."""
        paths = [base.path for base in index._follower.bases]
        asked = {os.path.realpath(path): path for path in self.storage_dirs}
        usage = {number: self._disk_usage_pct(asked.get(path, path)) for number, path in enumerate(paths)}
        hot = frozenset(number for number, percent in usage.items() if percent >= self.high_watermark)
        places = index._follower.places

        def is_hot(popped: Popped) -> bool:
            return any(places[directory].base in hot for directory, _ in Packing.weights(popped.packed))

        evicted = False
        while hot and not self._stop.is_set():
            some = Evictor(index).evict(SelectingBudget(CountBudget(self.recheck_groups), is_hot))
            evicted = evicted or bool(some)
            still = [self._disk_usage_pct(asked.get(paths[number], paths[number])) for number in sorted(hot)]
            if not some or all(percent < self.low_watermark for percent in still):
                break
        return evicted

    def _usage_is_replaced(self) -> bool:
        return getattr(self._disk_usage_pct, "__func__", None) is not _DISK_USAGE_PCT or os.statvfs is not _STATVFS

    def _make_cleaner(self, index: GroupIndex) -> Cleaner:
        capacity = None if self.capacity_gb is None else int(self.capacity_gb * 10**9)
        high = min(100.0, self.high_watermark)  # beyond that the watermark is never reached: `_clean` knows
        low = max(0.0, min(self.low_watermark, high - 1.0))
        return Cleaner(index, high, low, interval=self.interval_sec, capacity=capacity)

    # --- the thread ---

    def _loop(self) -> None:
        """Follow the directories that exist; begin anew when another one comes into being."""
        while not self._stop.is_set():
            directories = [path for path in self.storage_dirs if os.path.isdir(path)]
            try:
                if directories:
                    self._follow(directories)
                    continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                text = f"the L3 cleaner failed, and is tried again in {self.interval_sec:.0f} s: {error!r}"
                self._log.say(logger, "sglang_cleaner_failed", text, error=error)
            self._log.flush()
            self._stop.wait(self.interval_sec)

    def _follow(self, directories: list[str]) -> None:
        with GroupIndex.watch(*directories, block=False) as index:
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    index.wait_ready(_READY_SECONDS)
                    break
            self._index, self._cleaner = index, self._make_cleaner(index)
            try:
                self._keep_clean(index, self._cleaner, directories)
            finally:
                self._cleaner.stop()
                self._index = self._cleaner = None

    def _keep_clean(self, index: GroupIndex, cleaner: Cleaner, directories: list[str]) -> None:
        """The cleaner has a thread of its own, but where the usage is replaced: then nobody else decides."""
        while not self._stop.is_set():
            if self._usage_is_replaced():
                cleaner.stop()
                self._clean_by_percent(index)
            elif self.high_watermark <= 100:
                cleaner.start()
            self._stop.wait(self.interval_sec)
            if any(path not in directories and os.path.isdir(path) for path in self.storage_dirs):
                return


_DISK_USAGE_PCT = HiCacheL3Cleaner._disk_usage_pct
