"""What the scout tells and what the host commands: the messages of the stream, without how they are written.

Mtimes are in ns, sizes in bytes, times in seconds. File names are bytes without NUL and `/`; a bucket is told once, by
its path, and named by its number from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

VERSION = 1
"""Of the protocol. Both ends must have the same: they come from one installation."""


def text_of(path: bytes) -> str:
    """A path, or a name, for a JSON record. The two ends may spell file names in different encodings; not this."""
    return path.decode("ascii", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The path that `text_of` made a text of."""
    return text.encode("ascii", "surrogateescape")


OVERFLOW = "the inotify queue overflowed"
"""The reason of a `Lost` that comes from a full inotify queue."""


class Origin(IntEnum):
    """Why the scout looked at a shard."""

    EVENT = 0  # inotify told of it
    SCAN = 1  # the first listing of everything
    RECONCILE = 2  # a later listing of everything, after a loss
    SCRUB = 3  # the slow reconcile
    POLL = 4  # the directory has no watch, or its file system makes no events
    LOOK = 5  # the host asked


class Phase(IntEnum):
    """Where a listing of a directory stands."""

    BEGIN = 0
    DONE = 1
    UNKNOWN = 2  # it could not be listed: nothing follows from what was not seen


class Outcome(IntEnum):
    """What became of a group whose eviction was asked for."""

    EVICTED = 0
    REWRITTEN = 1  # a shard has another mtime than the indexed one: all were left alone
    FAILED = 2  # an unlink, or the look before it, failed; `errno` says why
    FROZEN = 3  # the base is frozen, or is not what was indexed: nothing was unlinked there


# --- the scout tells ---


class Hello(NamedTuple):
    """The first record: the scout runs and speaks `version`."""

    version: int
    pid: int


class Fault(NamedTuple):
    """The scout cannot go on, or cannot start with what it was given. `kind` names a built-in exception."""

    kind: str
    message: str


class BaseState(NamedTuple):
    """A base is this directory now. `frozen` says why nothing of it is dropped or unlinked, empty where it is live;
    `remote` which kind of file system it is on, if one that makes no events for what others write."""

    base: int
    path: str
    device: int
    inode: int
    frozen: str
    remote: str


class Directory(NamedTuple):
    """From now on `directory` is the number of this bucket: `parts` are the names from the base down to it."""

    directory: int
    base: int
    parts: list[str]


class Listing(NamedTuple):
    """A listing of a bucket starts or ends, for this reason. `known` is 0 where it is the first one, so that the host
    can know no shard there that it does not see."""

    directory: int
    phase: int
    origin: int
    known: int


class Sweep(NamedTuple):
    """Listings are complete: what they did not see in the buckets they covered is suspect."""


class Lost(NamedTuple):
    """Events were lost; the scout lists everything again and then sends `Crawled`."""

    reason: str


class Crawled(NamedTuple):
    """Every live base was listed since the start or since the last `Lost`; how many losses the scout knows of."""

    losses: int


class Status(NamedTuple):
    """Counters of the scout, sent when they changed: directories with and without a watch, why these have none (each
    reason once), directories of which not everything could be looked at, look-ups that failed with an error that proves
    nothing, and what the last such error was."""

    watched: int
    unwatched: int
    watch_errors: list[str]
    doubtful: int
    errors: int
    last_error: str


class Done(NamedTuple):
    """All that the command of this number asked for was told before this record."""

    number: int


class Measured(NamedTuple):
    """The answer to `Measure`. For each base: device, bytes in all and available, inodes in all and available, and why
    that is unknown, empty where it is known."""

    number: int
    volumes: list[list[Any]]


class Locked(NamedTuple):
    """The answer to `Lock`: for each base that was asked for, why its lock is not held, or empty."""

    number: int
    refusals: list[str]


class Shards(NamedTuple):
    """These shards are, with these mtimes (ns) and disk bytes."""

    origin: int
    directories: Sequence[int]
    mtimes: Sequence[int]
    sizes: Sequence[int]
    names: Sequence[bytes]


class Reads(NamedTuple):
    """These names were read; each at most once a second."""

    directories: Sequence[int]
    names: Sequence[bytes]


class Gone(NamedTuple):
    """These names are no shards: proven."""

    origin: int
    directories: Sequence[int]
    names: Sequence[bytes]


class Evicted(NamedTuple):
    """The answer to `Evict`, a row for each of its groups: outcome, shards unlinked, disk bytes freed, errno."""

    number: int
    outcomes: Sequence[int]
    unlinked: Sequence[int]
    freed: Sequence[int]
    errnos: Sequence[int]


# --- the host commands ---


class Config(NamedTuple):
    """The first command. `bases` are `[path, device, inode, hung]`: zeros where the base is new, and for
    how many seconds a base that hung is not to be touched; `directories` are the
    buckets that the host knows by number, as in `Directory`."""

    version: int
    bases: list[list[Any]]
    layout: str
    directories: list[list[Any]]
    poll_interval: float
    rescan_interval: float
    reads: int


class Sync(NamedTuple):
    """Tell every change made before now, then `Done`."""

    number: int


class Scan(NamedTuple):
    """List base `base` (-1: all) again, adopting what stands at its path, then `Done`."""

    number: int
    base: int


class Measure(NamedTuple):
    """Tell how full the file systems of all bases are."""

    number: int


class Lock(NamedTuple):
    """Take the evictor's lock of these bases, without waiting for it; of no base lets all locks go."""

    number: int
    bases: list[list[int]]


class Stop(NamedTuple):
    """End."""


class Look(NamedTuple):
    """Tell what these names are now, then `Done`."""

    number: int
    directories: Sequence[int]
    names: Sequence[bytes]


class Evict(NamedTuple):
    """Verify these groups, unlink their shards, then `Evicted`. `lengths` is how many of the rows are each group's."""

    number: int
    lengths: Sequence[int]
    directories: Sequence[int]
    mtimes: Sequence[int]
    names: Sequence[bytes]


Message: TypeAlias = (
    "Hello | Fault | BaseState | Directory | Listing | Sweep | Lost | Crawled | Status | Done | Shards | Reads"
    " | Gone | Evicted | Measured | Locked | Config | Sync | Scan | Measure | Lock | Stop | Look | Evict"
)
