"""The least that an index could do: wake up, and look at each file. In CPU microseconds a file, at a rate of files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import cache

from nixl_index.scout import COALESCE_SECONDS

_SECONDS = 1.0


@cache
def _wake_seconds() -> float:
    """CPU seconds of a loop that only wakes up, a second."""
    return _cpu_seconds(lambda: None)


def waking(rate: float) -> float:
    """A loop that wakes up as often as the scout does, which waits so long for more events."""
    return 1e6 * _wake_seconds() / rate


def looking(rate: float) -> float:
    """The same, with an `lstat` of each file."""
    batch = max(1, round(rate * COALESCE_SECONDS))
    with tempfile.NamedTemporaryFile() as file:

        def look() -> None:
            for _ in range(batch):
                os.lstat(file.name)

        return 1e6 * _cpu_seconds(look) / rate


def _cpu_seconds(work: Callable[[], None]) -> float:
    """CPU seconds of this thread, for so much work as comes in a second."""
    begun, turns = time.thread_time(), round(_SECONDS / COALESCE_SECONDS)
    for _ in range(turns):
        work()
        time.sleep(COALESCE_SECONDS)
    return (time.thread_time() - begun) / (turns * COALESCE_SECONDS)
