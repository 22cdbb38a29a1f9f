"""How an index and its cleaner are: frozen snapshots, cheap enough to be taken every second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nixl_index.durations import Durations
from nixl_index.follower import Follower
from nixl_index.link import Isolation
from nixl_index.observer import ShardObserver

State = Literal["scanning", "live", "degraded", "frozen", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot. Counters count since the index was started; sizes are in bytes, times in seconds."""

    state: State
    """`scanning` before the first scan is over; `degraded` while a reconcile after a loss is due, or a directory cannot
    be watched or listed; `frozen` while a base is out of sight; `failed` when the index refuses to answer."""
    frozen: dict[str, str]
    """Base dirs of which nothing is evicted, and why."""
    remote: dict[str, str]
    """Base dirs on a kind of file system that makes no events for what others write, and which."""
    directories_listed: int
    directories_known: int
    groups: int
    shards: int
    watched: int
    """Directories with a watch."""
    unwatched: int
    """Directories without one, which are listed on a timer."""
    doubtful: int
    """Directories of which an error kept something from being looked at; they are listed again soon."""
    events: int
    """Sightings of names that an event told of: what happens to a name within 40 ms is one."""
    losses: int
    """How often events were lost, for whatever reason."""
    overflows: int
    """How often because the inotify queue was full."""
    reconciles: int
    mended: int
    """Shards that a reconcile or the scrub found other than they were known, and that no event told of within 5 s."""
    isolation: Isolation
    """Where the scout runs now: a thread too where no process could be started."""
    scout_pid: int
    """0 where the scout runs in a thread."""
    scout_restarts: int
    queued_bytes: int
    """What of the stream waits for the index."""
    oldest_unhandled: float
    """For how long the oldest part of the stream has waited."""
    ignored: int
    """Sightings of names that are no shard's: hidden, temporary, without a key."""
    foreign: int
    """Sightings of names of other models."""
    evicted_groups: int
    freed_bytes: int
    """Disk bytes that unlinks freed, whoever asked for them; not those of groups that were popped."""
    quarantined: int
    """Groups that could not be unlinked, and wait to be tried again."""
    errors: int
    """Look-ups that failed with an error that proves nothing."""
    last_error: str

    @classmethod
    def of(cls, follower: Follower, observer: ShardObserver, closed: bool) -> Health:
        """The present health of these parts of an index."""
        emitter, status, order, writer = observer.emitter, follower.status, follower.order, follower.writer
        frozen = {base.path: base.frozen for base in follower.bases if base.frozen}
        return cls(
            state=_state(follower, bool(frozen), closed),
            frozen=frozen,
            remote={base.path: base.remote for base in follower.bases if base.remote},
            directories_listed=len(follower.listed),
            directories_known=len(follower.places),
            groups=len(order),
            shards=order.totals.count,
            watched=status.watched,
            unwatched=status.unwatched,
            doubtful=status.doubtful,
            events=writer.events,
            losses=follower.losses,
            overflows=follower.overflows,
            reconciles=follower.reconciles,
            mended=writer.missed.count,
            isolation=observer.isolation,
            scout_pid=emitter.pid if emitter else 0,
            scout_restarts=emitter.restarts if emitter else 0,
            queued_bytes=emitter.queued if emitter else 0,
            oldest_unhandled=emitter.oldest_unhandled if emitter else 0.0,
            ignored=writer.ignored,
            foreign=writer.foreign,
            evicted_groups=follower.evicted_groups,
            freed_bytes=follower.freed_bytes,
            quarantined=len(writer.quarantine),
            errors=status.errors,
            last_error=follower.last_error,
        )


def _state(follower: Follower, frozen: bool, closed: bool) -> State:
    if closed:
        return "closed"
    if follower.failure:
        return "failed"
    if not follower.ready.is_set():
        return "scanning"
    if frozen:
        return "frozen"
    status = follower.status
    return "degraded" if follower.dirty or status.unwatched or status.doubtful else "live"


@dataclass(frozen=True, slots=True)
class CleanerHealth:
    """A snapshot of a cleaner. Counters count since it was made."""

    running: bool
    ticks: int
    evicted_groups: int
    freed_bytes: int
    usage: dict[str, float]
    """Percent, of each base dir that the last tick could measure; with a capacity, of that."""
    last_tick_seconds: float
    last_error: str
    """Why the last tick did less than it should have; empty where it did not."""
    evicted_torn_groups: int
    """Those that went first since they lack a rank."""
    tick_durations: Durations
