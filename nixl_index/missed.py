"""What listings found that no event had told: the measure of whether the index misses anything. Pure."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal

GRACE_SECONDS = 5.0
"""An event can come after the listing that saw its cause: a writer still holds the file open, or the event waited in
the queue. Only what no event told within this time was missed."""
MAX_PENDING = 10_000
"""After a great loss the memory of each find would cost more than it tells: beyond this they count at once."""

Kind = Literal["missing", "rewritten", "extra", "settled"]
"""What the index lacked, had with another mtime, had in excess, or had with other disk bytes."""
Name = tuple[int, str]
"""Directory id and file name."""


class Missed:
    """Finds of reconciles and of the scrub, until it is clear whether an event tells of them too."""

    def __init__(self, clock: Callable[[], float] = monotonic, grace: float = GRACE_SECONDS) -> None:
        self.count = 0
        """How many were missed for good."""
        self.pending: dict[Name, tuple[Kind, float]] = {}
        self._audit: dict[Name, Kind] | None = None
        self._clock = clock
        self._grace = grace

    @property
    def waiting(self) -> bool:
        """Is there a find of which an event may still tell?"""
        return bool(self.pending or self._audit)

    def found(self, name: Name, kind: Kind) -> None:
        """A listing found this."""
        self.pending.pop(name, None)  # to the end: the dict is in the order of time
        if len(self.pending) < MAX_PENDING:
            self.pending[name] = (kind, self._clock())
        else:
            self.count += 1
        if self._audit is not None:
            self._audit[name] = kind

    def settled(self, name: Name) -> None:
        """A listing found other disk bytes and the same mtime: late write-back, which no event tells, and no miss."""
        if self._audit is not None:
            self._audit[name] = "settled"

    def told_all(self, directory: int) -> None:
        """An event told of the directory itself: what was found there follows from that. O(pending)."""
        for finds in (self.pending, self._audit or {}):
            for name in [name for name in finds if name[0] == directory]:
                del finds[name]

    def told(self, name: Name) -> None:
        """An event told of it as well."""
        self.pending.pop(name, None)
        if self._audit is not None:
            self._audit.pop(name, None)

    def audit(self) -> None:
        """From now on note every find, until `end_audit`."""
        self._audit = {}

    def end_audit(self) -> list[tuple[Name, Kind]]:
        """What was found since `audit` that no event told of."""
        found, self._audit = self._audit or {}, None
        return list(found.items())

    def settle(self) -> None:
        """Count what no event told of in time. O(1) for each that is settled."""
        now = self._clock()
        while self.pending:
            name, (_, since) = next(iter(self.pending.items()))
            if now - since < self._grace:
                break
            del self.pending[name]
            self.count += 1
