"""The scout: one loop over inotify, commands and pending work. The process that it runs in does all file-system calls.

It tells what is, in order, down a stream, and takes commands; it holds no index. It ends when its host does: at the end
of the command pipe, or when the host's pidfd says so (a forked sibling of the host can hold the pipe open).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections import deque
from contextlib import suppress
from time import monotonic

from nixl_index import records, wire
from nixl_index.disk import Base, take_base
from nixl_index.errors import WireError
from nixl_index.evictions import evict_in_steps
from nixl_index.layout import Layout
from nixl_index.outbox import Outbox
from nixl_index.position import Position
from nixl_index.records import Message, Origin
from nixl_index.rounds import Rounds
from nixl_index.scans import Steps
from nixl_index.tree import Tree
from nixl_index.volumes import Locks, measure

COALESCE_SECONDS = 0.04
"""How long an event waits for others: one look serves all that happened to a name, one wake-up all names."""
_READ = 1 << 16


class Scout:
    """Reads commands from one descriptor and writes the stream to another (the same one will do). `run` is the loop.
    `position` always says which base the next calls touch: where it hangs if it is not heard of again."""

    def __init__(self, commands: int, stream: int, position: Position, host: int = 0) -> None:
        self._host_pid = host
        self._commands = commands
        self._stream = stream
        self._reader = wire.FrameReader()
        self._out = Outbox(stream)
        self._tell = self._out.tell
        self._position = position
        self._urgent: deque[Steps] = deque()
        self._poll = select.poll()
        self._tree: Tree | None = None
        self._config = records.Config(0, [], "", [], 0.0, 0.0, 0)
        self._coalesce_until = 0.0
        self._rounds: Rounds | None = None
        self._locks = Locks()
        self._host = self._mounts = -1
        self._stopping = False

    def run(self) -> None:
        """Serve until told to stop or until the host is gone. Does not raise: a fault is the stream's last record."""
        try:
            for fd in {self._commands, self._stream}:
                os.set_blocking(fd, False)
            if self._host_pid:
                self._watch_host(self._host_pid)
            self._poll.register(self._commands, select.POLLIN)
            self._tell(records.Hello(records.VERSION, os.getpid()))
            self._flush()
            while not self._stopping:
                self._turn()
        except (BrokenPipeError, ConnectionResetError):
            return  # the host is gone
        except BaseException as error:  # noqa: BLE001 - whatever it is, the host is told, and starts another scout
            known = isinstance(error, (OSError, ValueError)) and self._tree is None
            self._fault(type(error).__name__, str(error) if known else traceback.format_exc())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close what it opened; called from outside only where its thread is gone."""
        for fd in (self._host, self._mounts):
            if fd >= 0:
                os.close(fd)
        self._host = self._mounts = -1
        self._locks.release()
        if self._tree:
            self._tree.watches.close()

    def _fault(self, kind: str, message: str) -> None:
        try:
            self._tell(records.Fault(kind, message))
            self._out.flush_all(self._host)
        except OSError:
            return

    # --- the loop ---

    def _turn(self) -> None:
        """Wait for something to do, and do one step of each kind of it."""
        tree = self._tree
        self._position.base = -1
        ready = dict(self._poll.poll(self._timeout()))
        if self._host in ready or ready.get(self._stream, 0) & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError
        if self._host_pid and self._host < 0 and os.getppid() != self._host_pid:
            raise BrokenPipeError
        if self._commands in ready:
            self._read_commands()
        if tree is None or self._stopping:
            return self._flush()
        now = monotonic()
        if self._mounts in ready and self._rounds:
            self._rounds.on_mount()
        if tree.watches.fileno() in ready and not self._coalesce_until:
            self._coalesce_until = now + COALESCE_SECONDS
            self._poll.unregister(tree.watches.fileno())  # a mask of 0 would still have each event wake this process
        if self._coalesce_until and now >= self._coalesce_until:
            self._coalesce_until = 0.0
            self._poll.register(tree.watches.fileno(), select.POLLIN)
            tree.drain()
        if not self._out:
            self._work(tree, now)
        return self._flush()

    def _timeout(self) -> int | None:
        """How long the poll may wait, in ms; None before the configuration came."""
        tree = self._tree
        if tree is None or self._rounds is None:
            return None
        if self._out:  # nothing is done before the host has read, but that events are taken from the kernel
            until = self._coalesce_until or monotonic() + 1.0
        elif self._urgent or tree.scans:
            return 0
        else:
            until = min(self._rounds.next, self._coalesce_until or self._rounds.next)
        return max(0, int((until - monotonic()) * 1000) + 1)

    def _work(self, tree: Tree, now: float) -> None:
        """A step of everything that waits. Only while the host has read all that was told before."""
        if self._rounds:
            self._rounds.work(now)
        tree.tell_dirty()
        if self._urgent:
            steps = self._urgent[0]
            if next(steps, self) is self:
                self._urgent.popleft()
        if tree.scans:
            tree.step()
        tree.tell_status()

    # --- the stream ---

    def _flush(self) -> None:
        """Write what the pipe takes, and have the poll say when it takes more."""
        waited = bool(self._out)
        self._out.flush()
        if self._stream == self._commands:
            self._poll.register(self._commands, select.POLLIN | (select.POLLOUT if self._out else 0))
        elif self._out or waited:
            self._poll.register(self._stream, select.POLLOUT if self._out else 0)

    def _touching(self, base: Base) -> None:
        self._position.base = base.number

    # --- commands ---

    def _read_commands(self) -> None:
        try:
            data = os.read(self._commands, _READ)
        except BlockingIOError:
            return
        if not data:
            self._stopping = True
        for kind, payload in self._reader.feed(data):
            self._obey(wire.decode(kind, payload))

    def _obey(self, command: Message) -> None:
        tree = self._tree
        if isinstance(command, records.Stop):
            self._stopping = True
        elif tree is None:
            if not isinstance(command, records.Config):
                raise WireError(f"{type(command).__name__} before Config")
            self._start(command)
        elif isinstance(command, records.Sync):
            self._urgent.append(self._sync(tree, command))
        elif isinstance(command, records.Look):
            self._urgent.append(self._look(tree, command))
        elif isinstance(command, records.Evict):
            self._urgent.append(evict_in_steps(tree, command, self._tell, self._touching))
        elif isinstance(command, records.Measure):
            self._urgent.append(self._measure(tree, command))
        elif isinstance(command, records.Lock):
            self._urgent.append(self._lock(tree, command))
        elif isinstance(command, records.Scan):
            tree.rescan(
                [base for base in tree.guard.bases if command.base in (-1, base.number)], adopt=command.base >= 0
            )
            tree.after_scans(records.Done(command.number))
        else:
            raise WireError(f"a command was expected, not {type(command).__name__}")

    def _start(self, config: records.Config) -> None:
        """Take the bases, watch and list them. Raises what is wrong with them before anything is watched."""
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._mounts, select.POLLPRI)
        layout = Layout(config.layout)
        bases: list[Base] = []
        for path, device, inode, hung in config.bases:
            at = records.bytes_of(path)
            real, identity = (at, (device, inode)) if inode else take_base(at, bases)
            base = Base(len(bases), real, identity, layout.depth == 0)
            if hung:
                base.frozen, base.not_before = "its disk hangs", monotonic() + hung
            bases.append(base)
        self._config = config
        tree = Tree(layout, bool(config.reads), self._tell, self._touching)
        self._tree = tree
        for base in bases:
            tree.add_base(base)
        for _number, number, parts in config.directories:
            tree.add_bucket(bases[number], [records.bytes_of(part) for part in parts]).listed = True
        self._poll.register(tree.watches.fileno(), select.POLLIN)
        self._rounds = Rounds(tree, config.poll_interval, config.rescan_interval)
        anew = all(inode == 0 for _, _, inode, _ in config.bases)
        tree.crawl(bases, Origin.SCAN if anew else Origin.RECONCILE)

    def _watch_host(self, host: int) -> None:
        with suppress(OSError):  # an old kernel, or a sandbox: then the parent's id has to do, once a turn
            self._host = os.pidfd_open(host)
            self._poll.register(self._host, select.POLLIN)
        if os.getppid() != host:
            raise BrokenPipeError  # it died before the descriptor was there

    def _sync(self, tree: Tree, command: records.Sync) -> Steps:
        tree.drain()
        yield from tree.tell_all_dirty()  # before the mark: what a look asks to be listed has to be told first
        for base in tree.guard.bases:
            tree.guard.check(base)
        tree.after_scans(records.Done(command.number))

    def _look(self, tree: Tree, command: records.Look) -> Steps:
        tree.drain()  # what an event told of is told as of the event
        tree.tell_dirty()
        names = [(tree.buckets[number], name) for number, name in zip(command.directories, command.names, strict=True)]
        (self._tell if tree.look(names, Origin.LOOK) else tree.after_scans)(records.Done(command.number))
        yield from ()

    def _measure(self, tree: Tree, command: records.Measure) -> Steps:
        volumes = []
        for base in tree.guard.bases:
            if not base.frozen:
                self._touching(base)
            volumes.append(measure(base))
        self._tell(records.Measured(command.number, volumes))
        yield from ()

    def _lock(self, tree: Tree, command: records.Lock) -> Steps:
        refusals = []
        if not command.bases:
            self._locks.release()
        for (number,) in command.bases:
            base = tree.guard.bases[number]
            if not base.frozen:
                self._touching(base)
            refusals.append(self._locks.take(base))
        self._tell(records.Locked(command.number, refusals))
        yield from ()


def main(host: int, position: int) -> None:
    """The scout process: commands at standard input, the stream at standard output."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    commands, stream = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    Scout(commands, stream, Position(position), host).run()
    sys.stderr.flush()
