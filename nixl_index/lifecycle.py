"""What happens to open indexes when the process forks or ends. Nothing is registered before the first index is."""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet


class _Open(Protocol):
    def close(self) -> None: ...

    def _abandon(self) -> None: ...


_open: WeakSet[_Open] = WeakSet()
_registered = False


def register(index: _Open) -> None:
    """Have this index closed when the interpreter ends, and made inert in a forked child."""
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_abandon_all)
    _open.add(index)


def _close_all() -> None:
    for index in list(_open):
        index.close()


def _abandon_all() -> None:
    """In the child: the threads are gone, and the scout is the parent's."""
    for index in list(_open):
        index._abandon()
    _open.clear()
