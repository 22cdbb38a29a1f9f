"""The table for README, in Markdown: `python -m tests.bench.report FILE.json`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from tests.bench.rows import Result, read_json, short

# In plain words; the target; which row it is: of several that match, the last, which is that of the largest tree.
LINES = (
    ("evict 50 groups (400 empty shards), quiet host", "500 times faster", "evict.quiet.*.peer"),
    ("the same", "", "evict.quiet.*.rescan"),
    ("the same, shards of 64 KiB", "<= 1.5 times", "evict.quiet.*.bare.65536"),
    ("the same, shards of 1 MiB", "<= 1.5 times", "evict.quiet.*.bare.1048576"),
    ("evict 50 groups of {shards:,} shards, spinning host", "<= 40 ms more", "evict.spinning.large"),
    ("evict 50 groups of {shards:,} shards, spinning host", "", "evict.spinning.small"),
    ("decide which group is the oldest, and take it out", "<= 3 us, <= 2.5 times", "order.pop.*"),
    ("put a new shard into the order", "<= 6 us", "order.upsert"),
    ("first scan until ready, quiet host", "<= 0.65 times", "scan.quiet.peer"),
    ("the same", "", "scan.quiet.rescan"),
    ("the same", "", "scan.quiet.names"),
    ("first scan until ready, spinning host", "<= 3 times", "scan.spinning"),
    ("what the host keeps of its speed meanwhile", ">= 75 %", "scan.spinning.host_rate"),
    (
        "5,000 files/s, spinning host: shards that are wrong after `sync()`",
        "0",
        "live.rate_5000.process.spinning.wrong",
    ),
    ("the same: lag of the index, p99", "<= 100 ms", "live.rate_5000.process.spinning.lag_p99"),
    ("the same: what the host keeps of its speed", ">= 95 %", "live.rate_5000.process.spinning.host_rate"),
    ("the same: the host's pauses above 0.2 ms, p99", "<= 3 ms", "live.rate_5000.process.spinning.pause_p99"),
    ("full writer speed, spinning host: wrong after `sync()`", "0", "live.full.process.spinning.wrong"),
    ("the same: overflows of the inotify queue", "0", "live.full.process.spinning.overflows"),
    ("the same: what the host keeps of its speed", ">= 90 %", "live.full.process.spinning.host_rate"),
    ("CPU of the host for one shard event, 5,000 a second", "<= 7 us", "live.rate_5000.process.quiet.host_cpu"),
    ("CPU of the scout for one", "<= 12 us", "live.rate_5000.process.quiet.scout_cpu"),
    ("CPU of the host for one read, 5,000 a second, `reads=True`", "<= 2 us", "reads.host_cpu"),
    ("CPU of the scout for one", "<= 10 us", "reads.scout_cpu"),
    ("`touch` of 1,000 random groups in one call", "<= 13 us a key", "resident.touch.8_a_group"),
    ("memory of the host, 8 shards a group", "<= 110 bytes a shard", "resident.host.8_a_group"),
    ("memory of the host, 1 shard a group", "<= 540 bytes a shard", "resident.host.1_a_group"),
    ("full garbage collection with the index, 8 shards a group", "<= 100 ms", "resident.collection.8_a_group"),
    ("full garbage collection with the index, 1 shard a group", "", "resident.collection.1_a_group"),
    ("memory of the scout, 256 buckets", "<= 30 MB", "resident.scout.256_buckets"),
    ("memory of the scout, 4,096 buckets", "<= 60 MB", "resident.scout.4096_buckets"),
)
_SMALL = 0.1
"""Ratios up to this are easier to read upside down."""


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The table. A row that was not measured is left out."""
    yield "| what | target | ours | baseline | ratio |"
    yield "|---|---|---|---|---|"
    for what, target, pattern in LINES:
        rows = [result for result in results if fnmatchcase(result.name, pattern)]
        if rows:
            row = rows[-1]
            cells = what.format(**row.details), target, _ours(row), _baseline(row), _ratio(row)
            yield f"| {' | '.join(cells)} |"


def _ours(row: Result) -> str:
    spread = row.details.get("spread")
    return _figure(row.value, row.unit) + (f" ({spread})" if spread else "")


def _baseline(row: Result) -> str:
    return "" if row.baseline is None else f"{_figure(row.baseline, row.unit)}: {row.details['against']}"


def _ratio(row: Result) -> str:
    if not row.ratio:
        return ""
    return short(row.ratio) if row.ratio > _SMALL else f"1/{1 / row.ratio:,.0f}"


def _figure(value: float, unit: str) -> str:
    return f"{short(value)} {unit}"


def main() -> None:
    """Print the table of the file that the command line names."""
    machine, results = read_json(sys.argv[1])
    print("\n".join(lines(results)))
    size, runs = f"{machine['shards']:,} shards unless said", f"runs: {machine['runs']}"
    memory, python = f"{machine['memory_bytes'] / 2**30:.0f} GiB", f"Python {machine['python']}"
    others = max((row.value for row in results if row.name.endswith(".others")), default=0.0)
    print(f"\n{size}; {runs}; {machine['cores']} cores, {memory}, {python}; others took up to {others:.1f} cores.")


if __name__ == "__main__":
    main()
