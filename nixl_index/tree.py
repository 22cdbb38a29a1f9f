"""The directories of all bases: watched, listed, and known by identity. Used by the scout alone.

A directory is always watched before it is listed. Before the records of a listing's step go out, inotify is drained
once more: what an event told of is told as of the event, by a later look, and does not count as found by the listing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from stat import S_ISREG
from time import monotonic

from nixl_index import inotify, records
from nixl_index.disk import UNKNOWN, Base, Directory, first_changed, identity_of
from nixl_index.guard import Guard
from nixl_index.layout import Layout
from nixl_index.listing import STEP_SECONDS, Found, list_bucket
from nixl_index.looks import Dirty, Errors, Name, Reads, Table, Tell, look
from nixl_index.records import Message, Origin, Phase
from nixl_index.scans import Scans, Steps
from nixl_index.watches import Watches

_LOOK_NAMES = 256
"""After so many looks the time is asked: beside a busy host, in a thread, each of them can take milliseconds."""


class Tree:
    """What the scout knows of the disk: directories and watches, and names that wait for a look; no shards."""

    def __init__(self, layout: Layout, reads: bool, tell: Tell, touching: Callable[[Base], None]) -> None:
        self.watches = Watches(reads)
        self.scans = Scans()
        self.errors = Errors()
        self.guard = Guard(tell, touching, self.errors, self._on_back)
        self.buckets: list[Directory] = []
        self.unwatched: dict[Directory, str] = {}
        """Directories without a watch, and why."""
        self._layout = layout
        self._tell = tell
        self._touching = touching
        self._status: Message | None = None
        self._dirty = Dirty()
        self._reads = Reads()
        self._counts_reads = reads
        self._sweep_due = False
        self._losses = self._crawls = 0

    def add_base(self, base: Base) -> None:
        """Cover a base from now on; nothing of it is listed yet."""
        self.guard.add(base)
        if base.root.is_bucket:
            self._number(base.root)

    def add_bucket(self, base: Base, parts: Sequence[bytes]) -> Directory:
        """The bucket below a base by the names that lead to it; made known where it is new."""
        directory = base.root
        for name in parts:
            directory = self._child(directory, name)
        return directory

    def _child(self, parent: Directory, name: bytes) -> Directory:
        child = parent.children.get(name)
        if child is None:
            is_bucket = parent.level + 1 == self._layout.depth
            child = parent.children[name] = Directory(parent.base, parent, parent.path + b"/" + name, is_bucket)
            if is_bucket:
                self._number(child)
        return child

    def _number(self, bucket: Directory) -> None:
        bucket.number = len(self.buckets)
        self.buckets.append(bucket)
        parts = [records.text_of(os.path.basename(link.path)) for link in bucket.chain()[1:]]
        self._tell(records.Directory(bucket.number, bucket.base.number, parts))

    def tell_status(self) -> None:
        """Tell the counters, where they changed."""
        reasons, errors = sorted(set(self.unwatched.values())), self.errors
        status = records.Status(
            *(len(self.watches), len(self.unwatched), reasons, len(errors.doubtful), errors.count, errors.last)
        )
        if status != self._status:
            self._status = status
            self._tell(status)

    # --- bases ---

    def rescan(self, bases: Iterable[Base], adopt: bool) -> None:
        """List these bases again on the host's word; with `adopt`, whatever directory stands at their paths now."""
        for base in bases:
            if adopt and base.frozen:
                base.forget()
        self.crawl(bases)

    def check_directories(self) -> None:
        """Something was mounted or unmounted: look again at every directory that is not the one that was indexed."""
        for directory in list(self.guard.changed()):
            self._on_changed(directory)

    def on_culprit(self, directory: Directory, code: int) -> None:
        """An eviction found this directory changed, or (`code`, an errno) its file system not taking unlinks."""
        if code:
            self.guard.freeze_failing(directory.base, code)
        else:
            self._on_changed(directory)

    def _on_back(self, base: Base) -> None:
        self.lost(f"base dir {os.fsdecode(base.path)!r} came back", [base])

    # --- events ---

    def drain(self) -> None:
        """Take every event that waits: names of shards become dirty, directories are visited."""
        dirty = self._dirty
        for directory, mask, name in self.watches.read():
            if name and directory.is_bucket:
                (self._reads if mask & inotify.READ else dirty).add((directory, name))
            elif not name:
                self.visit(directory, Origin.EVENT)
            elif mask & inotify.IS_DIRECTORY and self._layout.matches(directory.level, name):
                self.visit(self._child(directory, name), Origin.EVENT)
        if dirty.overfull:
            self._dirty = Dirty()
            self.watches.losses.append("the host reads too slowly")
        losses, self.watches.losses = self.watches.losses, []
        for reason in dict.fromkeys(losses):
            self.lost(reason, self.guard.bases)

    def tell_dirty(self) -> bool:
        """Look at names that events told of, for a step, and tell what they are. False where listings have to tell the
        rest."""
        told = self._tell_some(self._dirty)
        self._reads.tell(self._tell)
        return told

    def tell_all_dirty(self) -> Steps:
        """The same for every name that waits now, step by step; what comes meanwhile is not waited for."""
        dirty, self._dirty = self._dirty, Dirty()
        while dirty:
            self._tell_some(dirty)
            yield
        self._reads.tell(self._tell)

    def _tell_some(self, dirty: Dirty) -> bool:
        told, until = True, monotonic() + STEP_SECONDS
        while dirty:
            told = self.look(dirty.take(_LOOK_NAMES), Origin.EVENT) and told
            if monotonic() > until:
                break
        return told

    def look(self, names: Iterable[Name], origin: Origin) -> bool:
        """Look at these names now, and tell what they are. False where a directory turned out to be another one: it
        was asked to be listed, and that tells the rest."""
        reads = self._reads if self._counts_reads else None
        changed = look(names, origin, self._tell, self._touching, self.errors, reads)
        for directory in changed:
            self._on_changed(directory)
        return not changed

    def lost(self, reason: str, bases: Sequence[Base]) -> None:
        """Events of these bases were lost: list everything of them again, before all that waits."""
        self._losses += 1
        self._tell(records.Lost(reason))
        self.scans.restart(bases, lambda: self.crawl(bases))

    def crawl(self, bases: Iterable[Base], origin: Origin = Origin.RECONCILE) -> None:
        """List these bases, all that is live of them, and then say so."""
        self._crawls += 1
        for base in bases:
            self.visit(base.root, origin)
        self.scans.mark(self._crawled())

    def _crawled(self) -> Steps:
        self.sweep()
        self._crawls -= 1
        self.tell_status()  # before: an index that is live has to know what is in doubt
        if not self._crawls:
            self._tell(records.Crawled(self._losses))
        yield from ()

    # --- directories ---

    def visit(self, directory: Directory, origin: Origin) -> None:
        """Look which directory stands there, watch it, and have it listed."""
        base, parent = directory.base, directory.parent
        if base.frozen if parent else not self.guard.check(base):
            return
        self._touching(base)
        try:
            identity = None if parent and parent.identity is None else identity_of(directory.path)
            if identity and directory.identity and directory.identity[0] not in (UNKNOWN[0], identity[0]):
                self.guard.freeze_mounted_over(directory)
                return
            if identity and self._watch(directory):
                identity = identity_of(directory.path)
            changed = first_changed(parent) if parent and not identity else None
        except OSError as error:
            self.errors.add(error, directory)
            return
        if changed:
            self._on_changed(changed)
        elif not identity and not parent:
            self.guard.check(base)
        else:
            # Events may have told of shards of what stood there before it was ever listed.
            directory.listed |= directory.identity not in (UNKNOWN, identity)
            directory.identity = identity
            if not identity:
                self.watches.remove(directory)
                self.unwatched.pop(directory, None)
            self.scans.add(directory, self._list(directory, origin))

    def meet(self, directory: Directory) -> None:
        """Learn which directories lead to this one, if that is not known yet: a new scout gets commands first."""
        for link in directory.chain():
            if link.identity == UNKNOWN:
                self.visit(link, Origin.RECONCILE)

    def _on_changed(self, directory: Directory) -> None:
        """A directory is not the one that was indexed."""
        if directory.parent is None:
            self.guard.check(directory.base)
        else:
            self.visit(directory, Origin.EVENT)

    def _watch(self, directory: Directory) -> bool:
        try:
            self.watches.add(directory)
        except (FileNotFoundError, NotADirectoryError):
            return True  # it went meanwhile, or something else stands there: the next look at it tells
        except OSError as error:
            self.unwatched[directory] = str(error.strerror)
            self.errors.add(error)
            return False
        self.unwatched.pop(directory, None)
        return True

    # --- listings ---

    def after_scans(self, message: Message) -> None:
        """Tell `message` when all that is known now, and every listing that waits now, was told."""
        self.scans.mark(self._mark(message))

    def _mark(self, message: Message) -> Steps:
        if not self.tell_dirty():
            yield  # what it asked to be listed comes before this goes on
        self.sweep()
        self.tell_status()
        self._tell(message)

    def step(self) -> None:
        """One step of the listing that is due."""
        self.scans.step()
        if not self.scans:
            self.sweep()

    def sweep_after_scans(self) -> None:
        """Have the listings that wait now followed by a sweep, whatever they were for."""
        self.scans.mark(self._swept())

    def _swept(self) -> Steps:
        self._tell(records.Sweep())
        yield from ()

    def sweep(self) -> None:
        """Say that what the last listings did not see is suspect, where there were any."""
        if self._sweep_due:
            self._sweep_due = False
            self._tell(records.Sweep())

    def _list(self, directory: Directory, origin: Origin) -> Steps:
        directory.queued = False
        if directory.base.frozen:
            return
        known, troubles = int(directory.listed), list[OSError]()
        if directory.is_bucket:
            self._tell(records.Listing(directory.number, Phase.BEGIN, origin, known))
        phase, changed = Phase.DONE, None
        try:
            yield from self._list_entries(directory, origin, troubles.append)
            changed = first_changed(directory)
        except (FileNotFoundError, NotADirectoryError):
            changed = directory
        except OSError as error:
            phase = Phase.UNKNOWN
            troubles.append(error)
        if changed:
            phase = Phase.UNKNOWN
            self._on_changed(changed)
        if directory.base.frozen:
            return
        directory.listed = True
        for trouble in troubles:
            self.errors.add(trouble, directory)
        if directory in self.errors.doubtful and not troubles:
            self.scans.mark(self._resolved(directory))  # after the listings that this one asked for
        if directory.is_bucket:
            self._sweep_due |= bool(known) and origin != Origin.SCRUB  # a scrub has one for a whole round
            self._tell(records.Listing(directory.number, phase, origin, known))

    def _resolved(self, directory: Directory) -> Steps:
        self.errors.doubtful.discard(directory)
        yield from ()

    def _list_entries(self, directory: Directory, origin: Origin, on_error: Callable[[OSError], None]) -> Steps:
        self._touching(directory.base)
        if directory.identity is None:
            if not directory.is_bucket:
                yield from self._list_level(directory, iter(()), origin)
            return
        with os.scandir(directory.path) as entries:
            if directory.is_bucket:
                yield from self._list_bucket(directory, list_bucket(entries, on_error), origin)
            else:
                yield from self._list_level(directory, entries, origin)

    def _list_level(self, directory: Directory, entries: Iterator[os.DirEntry[bytes]], origin: Origin) -> Steps:
        """Visit every child that is there, and those that were; where every directory has its own turn, those alone
        that came or went."""
        known = dict.fromkeys(directory.children.values())
        there: dict[Directory, None] = {}
        for entry in entries:
            if self._layout.matches(directory.level, entry.name) and entry.is_dir(follow_symlinks=False):
                there[self._child(directory, entry.name)] = None
        in_turn = origin in (Origin.SCRUB, Origin.POLL)
        for count, child in enumerate({**there, **known}, 1):
            if not (in_turn and child in known and child in there):
                self.visit(child, origin)
            if count % 256 == 0:
                yield

    def _list_bucket(self, bucket: Directory, steps: Iterator[Found], origin: Origin) -> Steps:
        for found in steps:
            self._tell_found(bucket, found, origin)
            yield
            if bucket.base.frozen:
                return
            self._touching(bucket.base)

    def _tell_found(self, bucket: Directory, found: Found, origin: Origin) -> None:
        self.drain()
        table = Table(origin)
        for name, stat in found.items():
            if (bucket, name) not in self._dirty and S_ISREG(stat.st_mode):
                table.add(bucket, name, stat)
        self.tell_dirty()
        if not bucket.base.frozen:
            table.tell(self._tell)
