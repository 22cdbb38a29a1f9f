"""A watchdog observer for shards. Its events are pieces of the stream, not files: handlers decode them."""

from __future__ import annotations

import logging
from functools import partial
from typing import cast

from watchdog.observers.api import BaseObserver, EventDispatcher, EventEmitter, EventQueue

from nixl_index import records
from nixl_index.emitter import PING_SECONDS, Configure, ScoutEmitter
from nixl_index.events import Fault, Turn
from nixl_index.link import Isolation
from nixl_index.logs import EventLog

logger = logging.getLogger(__name__)


class ShardObserver(BaseObserver):
    """A watchdog observer over the buckets of some base dirs. `schedule` it once, with a handler of `StreamEvent`s.

    `configure` gives the configuration that each new scout starts with; `isolation` is where it runs. Starting the
    observer raises what is wrong with the base dirs.
    """

    def __init__(self, configure: Configure, isolation: Isolation = "process") -> None:
        emitter_class = partial(ScoutEmitter, configure=configure, isolation=isolation)
        super().__init__(cast("type[EventEmitter]", emitter_class), timeout=PING_SECONDS)
        self.name = "nixl-index-observer"
        self._isolation = isolation
        self._log = EventLog("")

    @property
    def emitter(self) -> ScoutEmitter | None:
        """The one emitter; None before `schedule` and after `stop`."""
        for emitter in tuple(self.emitters):
            return cast("ScoutEmitter", emitter)
        return None

    @property
    def isolation(self) -> Isolation:
        """Where the scout runs now."""
        emitter = self.emitter
        return emitter.isolation if emitter else self._isolation

    def send(self, message: records.Message) -> None:
        """Send a command to the scout, if there is one. Never blocks."""
        emitter = self.emitter
        if emitter:
            emitter.send(message)

    def post(self) -> None:
        """Have the handler called with a `Turn`, after what is queued."""
        emitter = self.emitter
        if emitter:
            emitter.queue_event(Turn())

    def healthy(self) -> None:
        """The index is whole: the next failure of a scout is not a repeated one."""
        emitter = self.emitter
        if emitter:
            emitter.healthy()

    def replace(self, reason: str) -> None:
        """Have the scout replaced by another one, which tells everything from the start."""
        emitter = self.emitter
        if emitter:
            emitter.replace(reason)

    def abandon(self) -> None:
        """In a forked child: let go of the copies of the parent's descriptors."""
        emitter = self.emitter
        if emitter:
            emitter.abandon()

    def run(self) -> None:
        """Dispatch until stopped. Nothing but `stop` ends it: whatever else would, the handlers are told of."""
        while self.should_keep_running():
            try:
                super().run()
            except BaseException as error:  # noqa: BLE001 - the thread's last resort
                text = f"the observer's thread was interrupted, and goes on: {error!r}"
                self._log.say(logger, "observer_interrupted", text, error=error)
                for handlers in tuple(self._handlers.values()):
                    for handler in tuple(handlers):
                        handler.dispatch(Fault(error))

    def dispatch_events(self, event_queue: EventQueue) -> None:
        """Hand the next event to the handlers. Not under the observer's lock, where watchdog does it: `schedule` and
        `stop` would wait for the index."""
        entry = event_queue.get()
        if entry is EventDispatcher.stop_event:
            return
        event, watch = entry
        try:
            for handler in tuple(self._handlers.get(watch, ())):
                handler.dispatch(event)
        finally:
            event.release()
