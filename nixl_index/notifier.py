"""Calls a callback for each thing that is put in, in order, on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from nixl_index.logs import EventLog
from nixl_index.results import EvictedGroup

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0

Callback = Callable[[EvictedGroup], None]


def call_back(callback: Callback, group: EvictedGroup, log: EventLog) -> None:
    """Call it. That it raises is logged, and no more."""
    try:
        callback(group)
    except Exception as error:  # noqa: BLE001 - whatever a caller's callback raises
        text = f"on_evict failed for group {group.key!r}: {error!r}"
        log.say(logger, "on_evict_failed", text, error=error)


class Notifier:
    """A queue, and a thread that starts with the first item. A callback that raises is logged, and the next called."""

    def __init__(self, callback: Callback, log: EventLog) -> None:
        self._callback = callback
        self._log = log
        self._queue: queue.SimpleQueue[EvictedGroup | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, item: EvictedGroup) -> None:
        """Have the callback called with this. Does not block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nixl-index-notifier", daemon=True)
            self._thread.start()
        self._queue.put(item)

    def stop(self) -> None:
        """End the thread when everything was called. Blocks for at most 5 s: a callback that hangs is left behind."""
        thread, self._thread = self._thread, None
        if thread:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)
                if thread.is_alive():
                    text = "an on_evict callback has not returned, and is left behind"
                    self._log.say(logger, "on_evict_hangs", text)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            call_back(self._callback, item, self._log)
