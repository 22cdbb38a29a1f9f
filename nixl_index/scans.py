"""What waits to be listed: a queue of work that is done in short steps. Pure. Used by the scout alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from nixl_index.disk import Base, Directory

Steps = Iterator[None]
_Scan = tuple[Steps, Directory | None]


class Scans:
    """Listings in their order, and marks between them. What a step asks for is done before what waited already, so a
    mark is reached when every listing that was asked for before it is over, with all that followed from it."""

    def __init__(self) -> None:
        self._waiting: deque[_Scan] = deque()
        self._ahead: list[_Scan] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, directory: Directory, steps: Steps) -> None:
        """Have a directory listed. One that waits for its listing already is not listed twice."""
        if directory.queued:
            return
        directory.queued = True
        self._add((steps, directory))

    def mark(self, steps: Steps) -> None:
        """Have this done when everything that waits now is over."""
        self._add((steps, None))

    def _add(self, scan: _Scan) -> None:
        (self._waiting if self._ahead is None else self._ahead).append(scan)

    def step(self) -> None:
        """Do one step of the first one."""
        scan = self._waiting.popleft()

        def step() -> None:
            for _ in scan[0]:
                self._add(scan)
                break

        self._before_the_rest(step)

    def restart(self, bases: Iterable[Base], begin: Callable[[], None]) -> None:
        """Forget the listings of these bases that wait, and do what `begin` asks for before everything that is left."""
        for waiting in (self._waiting, self._ahead or []):
            for scan in [scan for scan in waiting if scan[1] and scan[1].base in bases]:
                waiting.remove(scan)
                if scan[1]:
                    scan[1].queued = False
        self._before_the_rest(begin)

    def _before_the_rest(self, work: Callable[[], None]) -> None:
        outer, self._ahead = self._ahead, []
        try:
            work()
        finally:
            ahead, self._ahead = self._ahead, outer
            if outer is None:
                self._waiting.extendleft(reversed(ahead))
            else:
                outer[:0] = ahead
