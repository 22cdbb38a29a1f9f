"""Pins: groups that are being read, and stay for as long."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from nixl_index.order import GroupOrder


class Pin:
    """Keeps groups from being evicted or popped until it is released: a context manager. Made by `GroupIndex.pin`."""

    def __init__(
        self, keys: Iterable[str], lock: threading.Lock, order: GroupOrder, in_flight: Collection[str]
    ) -> None:
        wanted = frozenset(keys)  # not under the lock: it may be a generator that asks the index
        self._lock = lock
        self._order = order
        with lock:
            self.keys = wanted.difference(in_flight)
            """The keys that it holds: without those of groups whose eviction was under way already."""
            self._held = self.keys
            for key in self._held:
                order.hold(key)

    def release(self) -> None:
        """Let the groups go. O(keys * log n). Idempotent."""
        with self._lock:
            held, self._held = self._held, frozenset()
            for key in held:
                self._order.release(key)

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
