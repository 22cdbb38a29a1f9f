"""Groups that could not be unlinked: set aside, so that one undeletable file never stops the rest. Pure."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from nixl_index.order import GroupOrder

FIRST_SECONDS = 60.0
MAX_SECONDS = 3600.0


class Quarantine:
    """Holds groups in the order, each for a time that doubles with every failure. To be used under the order's lock."""

    def __init__(self, order: GroupOrder, clock: Callable[[], float] = monotonic) -> None:
        self._order = order
        self._clock = clock
        self._until: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, key: object) -> bool:
        return key in self._until

    def add(self, key: str) -> None:
        """The group of this key could not be unlinked. O(log n)."""
        seconds = min(MAX_SECONDS, self._seconds.get(key, FIRST_SECONDS / 2) * 2)
        if key not in self._until:
            self._order.hold(key)
        self._seconds[key] = seconds
        self._until[key] = self._clock() + seconds

    def forget(self, key: str) -> None:
        """The group changed, or is gone: what was known of it does not count any more. O(log n)."""
        self._seconds.pop(key, None)
        if self._until.pop(key, None) is not None:
            self._order.release(key)

    def release_due(self) -> None:
        """Let those be tried again whose time has come. O(quarantined)."""
        now = self._clock()
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
            self._order.release(key)
