"""The host's end of one scout: starts it, in a process or a thread, and carries bytes. Knows no meaning of the records.

Sending never blocks: what the pipe does not take waits here, and goes out while `read` polls.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Literal

from nixl_index import wire
from nixl_index.position import Position
from nixl_index.scout import Scout

Isolation = Literal["process", "thread"]

PIPE_BYTES = 1 << 20
_READ = 1 << 18
_STOP_SECONDS = 2.0
_BOOT = """\
import sys, types
sys.path[:] = {path!r}
package = sys.modules["nixl_index"] = types.ModuleType("nixl_index")
package.__path__ = [{home!r}]  # not the real package: it would import the host's half
from nixl_index.scout import main
main({host}, {position})
"""


class Link:
    """A running scout. Raises OSError where it cannot be started."""

    def __init__(self, isolation: Isolation) -> None:
        self._reader = wire.FrameReader()
        self._lock = threading.Lock()  # of `_unsent` and of writing: a leaf, nothing is called under it that waits
        self._unsent = bytearray()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._scout: Scout | None = None
        self._fds: list[int] = []
        self.position = Position()
        try:
            self._wake = self._own(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._stream, self._commands = self._start_process() if isolation == "process" else self._start_thread()
        except BaseException:
            self._close_fds()
            raise
        for fd in {self._stream, self._commands}:
            os.set_blocking(fd, False)

    def _own(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _start_process(self) -> tuple[int, int]:
        if not sys.executable:
            raise FileNotFoundError("this interpreter does not know its executable (sys.executable)")
        path = [os.path.abspath(entry) for entry in sys.path]
        home = str(Path(__file__).resolve().parent)
        boot = _BOOT.format(host=os.getpid(), position=self.position.fd, path=path, home=home)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            pass_fds=(self.position.fd,),
            start_new_session=True,
            bufsize=0,
        )
        stream, commands, errors = self._process.stdout, self._process.stdin, self._process.stderr
        assert stream
        assert commands
        assert errors
        os.set_blocking(errors.fileno(), False)
        with suppress(OSError):  # the user's limit of pipe memory: a smaller pipe works too
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return stream.fileno(), commands.fileno()

    def _start_thread(self) -> tuple[int, int]:
        ours, theirs = socket.socketpair()
        fd = self._own(ours.detach())
        self._theirs = theirs
        scout = self._scout = Scout(theirs.fileno(), theirs.fileno(), self.position)

        def run() -> None:
            try:
                scout.run()
            finally:
                theirs.close()  # as the end of a process would

        self._thread = threading.Thread(target=run, name="nixl-index-scout", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            theirs.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        return fd, fd

    @property
    def pid(self) -> int:
        """The scout's process id; 0 where it is a thread."""
        return self._process.pid if self._process else 0

    def send(self, data: bytes) -> None:
        """Send a command's frame. Never blocks, never raises: a link that is gone says so to its reader."""
        with self._lock:
            if self._closed:
                return
            waiting = bool(self._unsent)
            self._unsent += data
            if not waiting:
                self._write_locked()
            if self._unsent:
                self._kick_locked()

    def _write_locked(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._commands, self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def _kick_locked(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    def wake(self) -> None:
        """Have a `read` that waits return."""
        with self._lock:
            if not self._closed:
                self._kick_locked()

    def read(self, timeout: float) -> list[wire.Frame] | None:
        """(kind, payload) of the frames that came, waiting up to `timeout` seconds for the first; an empty list after
        that time or a `wake`; None where the stream has ended. Raises WireError where it holds garbage."""
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._unsent:
            poll.register(self._commands, select.POLLOUT | (select.POLLIN if self._commands == self._stream else 0))
        ready = dict(poll.poll(int(timeout * 1000)))
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        if self._unsent:
            with self._lock:
                self._write_locked()
        if not ready.get(self._stream, 0) & ~select.POLLOUT:
            return []
        try:
            data = os.read(self._stream, _READ)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._reader.close()
            return None
        return list(self._reader.feed(data))

    def close(self, stop: bytes = b"") -> str:
        """End the scout: send it `stop`, else kill it, and reap it. Returns what it last wrote to its standard error.

        Blocks for 2 s for a scout that does not stop, and as long for one that does not die (a system call on a disk
        that hangs): that one is left behind, and the text says so. Idempotent.
        """
        with self._lock:
            if self._closed:
                return ""
            if stop:
                self._unsent += stop
                self._write_locked()
            self._closed = True
        try:
            return self._end_process(bool(stop)) if self._process else self._end_thread()
        finally:
            self._close_fds()

    def _end_process(self, gently: bool) -> str:
        process = self._process
        assert process
        if gently and not self._drained(process):
            gently = False
        if not gently:
            process.kill()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _reap(process.wait)
            return f"scout {process.pid} hangs in a system call and cannot be killed: left behind"
        errors = b""
        with suppress(OSError):
            errors = os.read(process.stderr.fileno(), _READ) if process.stderr else b""
        return errors.decode(errors="replace").strip()

    def _drained(self, process: subprocess.Popen[bytes]) -> bool:
        """Read on until the scout ends, since it may wait for room in the pipe. False if it takes too long."""
        until = monotonic() + _STOP_SECONDS
        while monotonic() < until:
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            poll.poll(50)
            with suppress(OSError):
                if not os.read(self._stream, _READ):
                    return True
        return process.poll() is not None

    def _end_thread(self) -> str:
        thread = self._thread
        assert thread
        _shut_down(self._stream)
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            return "the scout thread hangs in a system call: left behind"
        return ""

    def abandon(self) -> None:
        """In a forked child: close the copies of the descriptors, and touch nothing of the parent's."""
        self._closed = True
        if self._process:
            self._process.returncode = 0  # it is not this process's child
        if self._scout:
            self._scout.abandon()
            self._theirs.close()
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.position.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr) if self._process else ():
            if pipe:
                pipe.close()


def _reap(wait: Callable[[], object]) -> None:
    """Wait for what was left behind, on a thread that ends with it: a process would stay a zombie."""
    threading.Thread(target=wait, name="nixl-index-reaper", daemon=True).start()


def _shut_down(fd: int) -> None:
    """End both directions of a socket: the other end reads its end of file."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
        end.shutdown(socket.SHUT_RDWR)
