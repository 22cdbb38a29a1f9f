"""`nixl-index evict`: have the oldest groups go, once."""

from __future__ import annotations

import argparse
import math
import sys
import time

from nixl_index.budget import Budget, BytesBudget, CountBudget, DeficitBudget
from nixl_index.cleaner import Cleaner
from nixl_index.cli import text
from nixl_index.cli.exits import FAILED, FINE, UsageError
from nixl_index.cli.opening import doubt_of_bases, opened
from nixl_index.cli.options import checked, nbytes, percent, positive
from nixl_index.cli.plan import Plan
from nixl_index.evict import Evictor
from nixl_index.index import GroupIndex
from nixl_index.results import EvictedGroup, Eviction, SkippedGroup
from nixl_index.watermarks import Watermarks

HELP = "evict the oldest groups, once, after it was asked"
DESCRIPTION = """\
Scan the base dirs, choose the oldest groups, show what would go, ask, and unlink
it: so many groups, or so many bytes, or down to a usage of each disk. With --to,
only groups with a file on a disk above that usage are chosen.

It unlinks nothing but what was shown: a group that was written meanwhile stays. It
never unlinks anything but regular files in directories of the layout, never follows
a symlink, and leaves files alone whose names are no shard's."""
EXAMPLE = """\
example:
  nixl-index evict /mnt/disk0/l3 /mnt/disk1/l3 --to 70 --dry-run
  nixl-index evict /mnt/disk0/l3 --bytes 10GiB --model Qwen/Qwen3-32B

exit code 1: not all that was shown was evicted, or it is not enough to come down
to --to, or the answer was no."""

SHOWN = 5
"""How many groups are named of each kind, without -v."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--groups", type=checked(positive), metavar="N", help="evict the N oldest groups")
    amount.add_argument(
        "--bytes", type=checked(nbytes), metavar="SIZE", help="evict groups of so many bytes, such as 10GiB"
    )
    amount.add_argument(
        "--to", type=checked(percent), metavar="PERCENT", help="evict until no disk is used more than this"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """The command."""
    asks = not (options.yes or options.dry_run)
    if asks and not sys.stdin.isatty():
        raise UsageError("nobody can be asked, since standard input is no terminal: give --yes, or --dry-run to look")
    if options.to == 100:
        raise UsageError("--to 100 is no aim: no disk is used more than that")
    with opened(options) as index:
        budget, enough = _budget(index, options)
        plan = Plan(budget)
        Evictor(index, dry_run=True).evict(plan, timeout=None)
        if budget.open and options.to is not None:
            enough = False
            _warn(f"all that can go would not bring every disk down to {options.to:g} %: the rest is other data")
        code = FINE if enough else FAILED
        if not plan.groups:
            why = "there is no group" if options.to is None else f"no disk is used more than {options.to:g} %"
            print(f"nothing to evict{': ' + why if enough else ''}")
            return code
        _show(plan, options)
        if doubt := doubt_of_bases(index):
            _warn(doubt)
        if options.dry_run:
            return code
        if asks and not _agreed(plan):
            print("nothing was evicted")
            return FAILED
        return _evict(index, plan, options.verbose) or code


def _budget(index: GroupIndex, options: argparse.Namespace) -> tuple[Budget, bool]:
    """What was asked for, and whether all that it depends on is known."""
    if options.groups is not None:
        return CountBudget(options.groups), True
    if options.bytes is not None:
        return BytesBudget(options.bytes), True
    above = Watermarks(math.nextafter(options.to, math.inf), options.to)  # anything above is too much
    problems: list[str] = []
    deficits = [above.deficit(volume) for volume in Cleaner(index).measure(problems)]
    for problem in problems:
        _warn(problem)
    totals = index._follower.order.totals
    wanted = [deficit for deficit in deficits if deficit]
    return DeficitBudget(wanted, lambda directory: totals.bases[directory], totals.frozen), not problems


def _show(plan: Plan, options: argparse.Namespace) -> None:
    """What would go."""
    now, groups = time.time_ns(), list(plan.groups.items())
    print(f"{'would evict' if options.dry_run else 'to be evicted:'} {plan}")
    shown = groups if options.verbose else groups[:SHOWN]
    rows = (
        [
            text.shortened(key, 100),
            text.count(group.shards, "shard"),
            text.size(group.nbytes),
            f"written {text.age((now - group.recency_ns) / 1e9)} ago",
        ]
        for key, group in shown
    )
    print("\n".join(text.indented(text.table(rows), len(groups))))


def _agreed(plan: Plan) -> bool:
    print(f"evict {plan}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _evict(index: GroupIndex, plan: Plan, verbose: bool) -> int:
    gone: list[EvictedGroup] = []

    def on_evict(group: EvictedGroup) -> None:
        gone.append(group)
        if verbose:
            print(f"evicted  {text.printable(group.key)}", flush=True)

    try:
        eviction = Evictor(index, on_evict=on_evict).evict(plan.again(), timeout=None)
    except KeyboardInterrupt:
        _tell(Eviction(tuple(gone), disk_bytes=sum(group.disk_bytes for group in gone)))
        raise
    _tell(eviction)
    missed = plan.changed(eviction)
    if missed:
        print(f"left alone: {text.count(missed, 'group')} that changed, or went, since they were shown")
    for what, groups in (("skipped", eviction.skipped), ("failed", eviction.failed)):
        _tell_left(what, groups, verbose)
    return FAILED if missed or eviction.failed or eviction.skipped else FINE


def _tell(eviction: Eviction) -> None:
    shards = text.count(sum(group.shards for group in eviction.evicted), "shard")
    print(f"evicted {text.count(len(eviction.evicted), 'group')}, {shards}; {text.size(eviction.disk_bytes)} freed")


def _tell_left(what: str, groups: tuple[SkippedGroup, ...], verbose: bool) -> None:
    if groups:
        print(f"{what}: {text.count(len(groups), 'group')}")
        lines = [f"{text.shortened(group.key, 100)}: {group.reason}" for group in groups]
        print("\n".join(text.indented(lines if verbose else lines[:SHOWN], len(groups))))


def _warn(problem: str) -> None:
    print(f"nixl-index: {text.printable(problem)}", file=sys.stderr)
