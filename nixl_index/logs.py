"""What an operator has to know: a line for each event, with keys that can be searched, and never a flood of them.

    nixl_index: base dir '/mnt/disk0' is frozen, nothing of it is evicted: ... | event=frozen base=/mnt/disk0

What happens again within a minute is held back: the last of it is logged when the minute is over, with the number of
the others (`held_back=3`). The keys are attributes of the record too (`record.event`), for loggers that write JSON.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

EVENTS = {
    # the index
    "ready": logging.INFO,  # the first scan is over
    "on_progress_failed": logging.ERROR,
    "overflow": logging.WARNING,  # the inotify queue was full: everything is listed again
    "lost": logging.WARNING,  # the same for another reason
    "reconciled": logging.INFO,  # everything was listed again
    "frozen": logging.WARNING,  # a base dir is out of sight: nothing of it is evicted
    "back": logging.WARNING,
    "remote": logging.WARNING,  # a base dir makes no events for what others write: it is polled
    "unwatched": logging.WARNING,  # directories cannot be watched, as by a limit: they are polled
    "watched": logging.INFO,  # all of them are again
    "doubtful": logging.WARNING,  # an error hides something of a directory: it is listed again
    "key_scheme_failed": logging.ERROR,
    "stream_failed": logging.ERROR,  # an error of ours: the scout is replaced
    "index_failed": logging.CRITICAL,  # again and again: the index refuses to answer
    # the scout
    "scout_replaced": logging.WARNING,  # it ended, or hung: everything is listed again
    "scout_failed": logging.ERROR,
    "scout_left_behind": logging.WARNING,  # it hangs on a disk, and cannot be killed
    "thread_fallback": logging.WARNING,  # no process can be started: it is slower beside a busy host
    "observer_interrupted": logging.ERROR,
    # eviction
    "quarantine": logging.WARNING,  # a group cannot be unlinked
    "usage_unknown": logging.WARNING,  # nothing is evicted for a disk that does not tell how full it is
    "locked_out": logging.WARNING,  # another process evicts from this base dir
    "hopeless": logging.WARNING,  # other data fills the disk beyond what the cache could give
    "short": logging.WARNING,  # a tick could not free what it had to
    "tick_failed": logging.ERROR,
    "cleaner_ended": logging.INFO,  # its index was closed, or has failed
    "on_evict_failed": logging.ERROR,
    "on_evict_hangs": logging.WARNING,
    "sglang_cleaner_failed": logging.ERROR,
}
"""Every event, and its level."""
SECONDS = 60.0
"""An event has at most one line in so many seconds, for each base and subject."""
MAX_TOPICS = 1_000
"""So many are remembered; of the one that was longest silent it is forgotten that it had a line."""

_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Line:
    logger: logging.Logger
    text: str
    keys: dict[str, object]
    error: BaseException | None

    def log(self, held_back: int) -> None:
        keys = {**self.keys, "held_back": held_back} if held_back else self.keys
        pairs = " ".join(f"{name}={_value(value)}" for name, value in keys.items())
        text = f"nixl_index: {self.text} | {pairs}"
        self.logger.log(EVENTS[str(keys["event"])], text, exc_info=self.error, extra=keys, stacklevel=3)


@dataclass(slots=True)
class _Topic:
    last: float = -inf
    held: int = 0
    line: _Line | None = None
    lasts: bool = False


class EventLog:
    """Of one index. `base` is what a line is about that names no other: all of its base dirs. Any thread may use it;
    nothing is logged under its lock."""

    def __init__(self, base: str, clock: Callable[[], float] = monotonic) -> None:
        self._base = base
        self._clock = clock
        self._lock = threading.Lock()  # of the fields below: a leaf
        self._topics: dict[_Key, _Topic] = {}
        self._waiting: dict[_Key, None] = {}

    def say(
        self,
        logger: logging.Logger,
        event: str,
        text: str,
        *,
        base: str = "",
        subject: str = "",
        lasts: bool = False,
        error: BaseException | None = None,
        **keys: object,
    ) -> None:
        """Log one of `EVENTS`, now or when its minute is over. `subject` tells those of the same name and base apart.
        What `lasts` is said once, until it is `over`. The traceback of `error` is logged unless the line is held back.
        """
        key = (event, base or self._base, subject)
        line = _Line(logger, text, {"event": event, "base": key[1], **keys}, error)
        now = self._clock()
        with self._lock:
            topic = self._topic_locked(key)
            if lasts and topic.lasts:
                return
            topic.lasts = lasts
            topic.held += topic.line is not None
            if now - topic.last < SECONDS:
                line.error = None  # it would keep the frames alive
                topic.line = line
                self._waiting[key] = None
                return
            held = self._take_locked(key, now)
        line.log(held)

    def over(self, event: str, base: str = "") -> None:
        """What lasted is over, for whatever subject: a line that was held back is not said any more. O(topics)."""
        with self._lock:
            for key, topic in self._topics.items():
                if key[:2] == (event, base or self._base):
                    topic.held += topic.line is not None
                    topic.line, topic.lasts = None, False
                    self._waiting.pop(key, None)

    def flush(self) -> None:
        """Log what was held back and has its turn now. To be called about once a second; O(1) where there is none."""
        if not self._waiting:
            return
        now, due = self._clock(), list[tuple[_Line, int]]()
        with self._lock:
            for key in list(self._waiting):
                topic = self._topics[key]
                if topic.line and now - topic.last >= SECONDS:
                    due.append((topic.line, self._take_locked(key, now)))
        for line, held in due:
            line.log(held)

    def _topic_locked(self, key: _Key) -> _Topic:
        topic = self._topics.get(key)
        if topic is None:
            if len(self._topics) >= MAX_TOPICS:
                silent = next(iter(self._topics))
                del self._topics[silent]
                self._waiting.pop(silent, None)
            topic = self._topics[key] = _Topic()
        return topic

    def _take_locked(self, key: _Key, now: float) -> int:
        """A line of this topic is logged now: how many were not since the last one?"""
        topic = self._topics.pop(key)
        self._topics[key] = topic  # to the end: the dict is in the order of the last lines
        held, topic.held, topic.line, topic.last = topic.held, 0, None, now
        self._waiting.pop(key, None)
        return held


def _value(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)
