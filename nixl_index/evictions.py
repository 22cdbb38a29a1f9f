"""The scout's answer to an `Evict`: verify and unlink, in steps, then tell. Used by the scout alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from nixl_index import records
from nixl_index.disk import Base, Directory
from nixl_index.listing import STEP_ENTRIES, STEP_SECONDS
from nixl_index.looks import Name, Table, Tell
from nixl_index.records import Origin
from nixl_index.scans import Steps
from nixl_index.tree import Tree
from nixl_index.unlink import Unlinker


def evict_in_steps(tree: Tree, command: records.Evict, tell: Tell, touching: Callable[[Base], None]) -> Steps:
    """Verify and unlink, group by group; then tell what each shard is now, and last the answer."""
    answers = []
    for number in dict.fromkeys(command.directories):
        tree.meet(tree.buckets[number])
    rows = zip([tree.buckets[n] for n in command.directories], command.names, command.mtimes, strict=True)
    waiting = deque(_groups(list(rows), command.lengths))
    while waiting:
        until, entries = monotonic() + STEP_SECONDS, 0
        gone, doubtful = Table(Origin.LOOK), list[Name]()
        with Unlinker() as unlinker:
            while waiting and entries < STEP_ENTRIES and monotonic() < until:
                shards = waiting.popleft()
                entries += len(shards)
                for base in {bucket.base for bucket, _, _ in shards}:
                    touching(base)
                eviction = unlinker.evict(shards)
                answers.append(eviction)
                gone.miss(eviction.unlinked)
                if len(eviction.unlinked) < len(shards):
                    doubtful += [(bucket, name) for bucket, name, _ in shards]
                if eviction.culprit:
                    tree.on_culprit(eviction.culprit, eviction.errno)
        gone.tell(tell)
        tree.look(doubtful, Origin.LOOK)
        if waiting:
            yield
    outcomes, unlinked, freed, errnos, _ = zip(*answers, strict=True)
    tell(records.Evicted(command.number, outcomes, [len(names) for names in unlinked], freed, errnos))


def _groups(
    rows: Sequence[tuple[Directory, bytes, int]], lengths: Sequence[int]
) -> list[Sequence[tuple[Directory, bytes, int]]]:
    groups, at = [], 0
    for length in lengths:
        groups.append(rows[at : at + length])
        at += length
    return groups
