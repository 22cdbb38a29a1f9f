"""The base dirs as the host knows them: by what the stream told last."""

from __future__ import annotations

import logging
import os

from nixl_index.logs import EventLog
from nixl_index.records import BaseState, bytes_of

logger = logging.getLogger(__name__)


class BaseView:
    """One base dir. `frozen` says why nothing of it is dropped or unlinked, and is empty while it is live; `remote` is
    its kind of file system, where that makes no events for what others write."""

    def __init__(self, path: str, poll_interval: float, log: EventLog) -> None:
        self.path = path
        self.device = self.inode = 0
        self.frozen = self.remote = ""
        self._poll_interval = poll_interval
        self._log = log

    def update(self, told: BaseState) -> None:
        """Take over what the scout told, and say what an operator has to know of it."""
        path = os.fsdecode(bytes_of(told.path))
        if told.frozen and told.frozen != self.frozen:
            self._log.over("back", path)
            text = f"base dir {path!r} is frozen, nothing of it is evicted: {told.frozen}"
            self._log.say(logger, "frozen", text, base=path)
        elif self.frozen and not told.frozen:
            self._log.over("frozen", path)
            self._log.say(logger, "back", f"base dir {path!r} is back", base=path)
        if told.remote and told.remote != self.remote:
            seconds = f"{self._poll_interval:.0f} s"
            text = f"base dir {path!r} is on {told.remote}, which makes no events for what others write"
            self._log.say(logger, "remote", f"{text}: listed every {seconds}", base=path)
        self.path, self.device, self.inode = path, told.device, told.inode
        self.frozen, self.remote = told.frozen, told.remote
