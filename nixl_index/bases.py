"""The base dirs as the host knows them: by what the stream told last."""

from __future__ import annotations

import logging
import os

from nixl_index.records import BaseState, bytes_of

logger = logging.getLogger(__name__)


class BaseView:
    """One base dir. `frozen` says why nothing of it is dropped or unlinked, and is empty while it is live; `remote` is
    its kind of file system, where that makes no events for what others write."""

    def __init__(self, path: str, poll_interval: float) -> None:
        self.path = path
        self.device = self.inode = 0
        self.frozen = self.remote = ""
        self._poll_interval = poll_interval

    def update(self, told: BaseState) -> None:
        """Take over what the scout told, and say what an operator has to know of it."""
        path = os.fsdecode(bytes_of(told.path))
        if told.frozen and told.frozen != self.frozen:
            logger.warning("nixl_index: base dir %r is frozen, nothing of it is evicted: %s", path, told.frozen)
        elif self.frozen and not told.frozen:
            logger.warning("nixl_index: base dir %r is back", path)
        if told.remote and told.remote != self.remote:
            logger.warning(
                "nixl_index: base dir %r is on %s, which makes no events for what others write: listed every %.0f s",
                *(path, told.remote, self._poll_interval),
            )
        self.path, self.device, self.inode = path, told.device, told.inode
        self.frozen, self.remote = told.frozen, told.remote
