"""Where the scout is: memory that it shares with its host, who reads it when the scout is not heard of any more.

The stream could tell it too, but each base that is touched would then wake the host (`tests/bench/live.py`).
"""

from __future__ import annotations

import mmap
import os

_BYTES = 4


class Position:
    """The number of the base that the scout touches now, or touched last; -1 where it is at none."""

    def __init__(self, fd: int = -1) -> None:
        """Share what is behind this descriptor, or make it where none is given. Raises OSError."""
        if fd < 0:
            fd = os.memfd_create("nixl-index-position", os.MFD_CLOEXEC)
            os.ftruncate(fd, _BYTES)
        self.fd = fd
        """To be handed to the scout's process."""
        try:
            self._memory = mmap.mmap(fd, _BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._cell = memoryview(self._memory).cast("i")

    @property
    def base(self) -> int:
        """No system call: a hanging scout does not matter."""
        return self._cell[0]

    @base.setter
    def base(self, number: int) -> None:
        self._cell[0] = number

    def close(self) -> None:
        """Unmap it. The other side keeps its own."""
        self._cell.release()
        self._memory.close()
        os.close(self.fd)
