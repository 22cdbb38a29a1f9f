"""`nixl-index stats`: what lies on the disks."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from nixl_index.cleaner import Cleaner
from nixl_index.cli import text
from nixl_index.cli.exits import FINE
from nixl_index.cli.opening import opened
from nixl_index.index import GroupIndex
from nixl_index.packed import Packing

HELP = "what lies there: groups, shards, bytes and ages, by base dir and model"
DESCRIPTION = """\
Scan the base dirs, and say what lies there: groups (cache entries), their shards
(files), bytes on disk, and when they were last written; by base dir, by model and
by age. A group with shards on several disks counts on each of them. It is torn if
it lacks a rank that its file names speak of.

It changes nothing, and never opens a shard."""
EXAMPLE = """\
example:
  nixl-index stats /mnt/disk0/l3 /mnt/disk1/l3
  nixl-index stats /mnt/disk0/l3 --json | jq .models

With --json: sizes in bytes, times in seconds since 1970, null where there is none."""

AGES = (60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
"""Where the bins of the histogram end, in seconds; the last one has no end."""
_BAR = 30


@dataclass(slots=True)
class Sum:
    """Groups added up. Times are in ns since 1970."""

    groups: int = 0
    shards: int = 0
    nbytes: int = 0
    oldest: int | None = None
    newest: int | None = None

    def add(self, shards: int, nbytes: int, recency_ns: int) -> None:
        """One more group, or a part of one; they come oldest first."""
        self.groups += 1
        self.shards += shards
        self.nbytes += nbytes
        self.oldest = recency_ns if self.oldest is None else self.oldest
        self.newest = recency_ns

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "groups": self.groups,
            "shards": self.shards,
            "bytes": self.nbytes,
            "oldest": self.oldest and self.oldest / 1e9,
            "newest": self.newest and self.newest / 1e9,
        }

    def as_cells(self, now: int) -> list[str]:
        """For a line of a table."""
        ages = ("-" if time_ns is None else text.age((now - time_ns) / 1e9) for time_ns in (self.oldest, self.newest))
        return [f"{self.groups:,}", f"{self.shards:,}", text.size(self.nbytes), *ages]


@dataclass(slots=True)
class Stats:
    """What an index holds, at one moment (ns since 1970)."""

    now: int
    total: Sum = field(default_factory=Sum)
    bases: dict[str, Sum] = field(default_factory=dict)
    models: dict[str, Sum] = field(default_factory=dict)
    ages: list[Sum] = field(default_factory=lambda: [Sum() for _ in range(len(AGES) + 1)])
    torn: int = 0

    @classmethod
    def of(cls, index: GroupIndex) -> Stats:
        """O(shards)."""
        stats, follower = cls(time.time_ns()), index._follower
        stats.bases = {base.path: Sum() for base in follower.bases}
        base_of = follower.order.totals.bases
        for group in index:
            parts: dict[str, tuple[int, int]] = {}
            for directory, nbytes in Packing.weights(group.packed):
                path = follower.bases[base_of[directory]].path
                shards, disk_bytes = parts.get(path, (0, 0))
                parts[path] = (shards + 1, disk_bytes + nbytes)
            for path, (shards, disk_bytes) in parts.items():
                stats.bases[path].add(shards, disk_bytes, group.recency_ns)
            whole = (len(group), group.disk_bytes, group.recency_ns)
            seconds = (stats.now - group.recency_ns) / 1e9
            stats.total.add(*whole)
            stats.models.setdefault(model_of(group.key), Sum()).add(*whole)
            stats.ages[sum(seconds >= end for end in AGES)].add(*whole)
        stats.torn = sum(1 for _ in index.torn())
        return stats


def model_of(key: str) -> str:
    """The model that a group key names, as file names have it, with its tenant before it; `-` where it names none."""
    tenant, slash, name = key.rpartition("/")
    return tenant + slash + (name.partition("_")[2] or "-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """The command."""
    with opened(options) as index:
        problems: list[str] = []
        cleaner = Cleaner(index)
        usage = cleaner.usage(cleaner.measure(problems))
        stats, health = Stats.of(index), index.health()
    for problem in problems:
        print(f"nixl-index: {text.printable(problem)}", file=sys.stderr)
    if options.json:
        print(json.dumps(_as_json(stats, usage) | {"ignored": health.ignored, "foreign": health.foreign}, indent=2))
    else:
        print("\n".join(_lines(stats, usage)))
        if health.ignored or health.foreign:
            print(f"\nleft out: {health.ignored:,} without a shard's name, {health.foreign:,} of other models")
    return FINE


def _as_json(stats: Stats, usage: dict[str, float]) -> dict[str, Any]:
    ages = zip((*AGES, None), stats.ages, strict=True)
    return {
        **stats.total.as_json(),
        "torn": stats.torn,
        "bases": {path: base.as_json() | {"usage_percent": usage.get(path)} for path, base in stats.bases.items()},
        "models": {model: total.as_json() for model, total in stats.models.items()},
        "ages": [
            {"below_seconds": end, "groups": total.groups, "shards": total.shards, "bytes": total.nbytes}
            for end, total in ages
        ],
    }


def _lines(stats: Stats, usage: dict[str, float]) -> list[str]:
    total, columns = stats.total, ("groups", "shards", "bytes", "oldest", "newest")
    lines = [
        f"{text.count(total.groups, 'group')}, {text.count(total.shards, 'shard')}, {text.size(total.nbytes)};"
        f" {stats.torn:,} torn",
        "",
    ]
    rows = [
        [text.printable(path), *base.as_cells(stats.now), text.percent(usage.get(path))]
        for path, base in stats.bases.items()
    ]
    lines += text.table([("base dir", *columns, "disk used"), *rows])
    if stats.models:
        by_size = sorted(stats.models.items(), key=lambda item: -item[1].nbytes)
        rows = [[text.printable(model), *model_sum.as_cells(stats.now)] for model, model_sum in by_size]
        lines += ["", *text.table([("model", *columns), *rows])]
        lines += ["", *_histogram(stats.ages)]
    return lines


def _histogram(ages: list[Sum]) -> list[str]:
    """How many bytes are how old."""
    names = [*(f"below {text.age(end)}" for end in AGES), "older"]
    most = max(total.nbytes for total in ages) or 1
    rows = [[name, f"{t.groups:,}", text.size(t.nbytes)] for name, t in zip(names, ages, strict=True)]
    header, *lines = text.table([("age", "groups", "bytes"), *rows])
    bars = ("#" * math.ceil(_BAR * total.nbytes / most) for total in ages)
    return [header, *(f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True))]
