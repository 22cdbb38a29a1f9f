"""The scout's end of the stream: what is told, until the host has read it. Used by the scout alone."""

from __future__ import annotations

import os
import select

from nixl_index import wire
from nixl_index.records import Message


class Outbox:
    """Records that wait to be written. Truthy while some do: the host does not keep up, or has not been polled for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = bytearray()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def tell(self, message: Message) -> None:
        """Have this written, after what was told before."""
        self._waiting += wire.encode(message)

    def flush(self) -> None:
        """Write what the pipe takes now. Raises BrokenPipeError where nobody reads any more."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            return

    def flush_all(self, host: int) -> None:
        """Write everything, waiting for the host to read. `host` is its pidfd, or negative. Raises BrokenPipeError
        where it is dead: a child of it can hold the pipe open."""
        writable = select.poll()
        writable.register(self._fd, select.POLLOUT)
        if host >= 0:
            writable.register(host, select.POLLIN)
        self.flush()
        while self._waiting:
            if host in dict(writable.poll()):
                raise BrokenPipeError
            self.flush()
