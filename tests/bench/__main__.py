"""The command line: `python -m tests.bench`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import apply, evict, live, order, reads, resident, scan
from tests.bench.harness import Settings, Subject, in_peace, roomy_directory
from tests.bench.rows import Result, header, line, merged, write_json
from tests.bench.trees import RANKS

SUBJECTS: dict[str, Subject] = {
    "order": order.run,
    "apply": apply.run,
    "scan": scan.run,
    "resident": resident.run,
    "evict": evict.run,
    "reads": reads.run,
    "live": live.run,
}
_QUICK_SHARDS, _LEAST_SHARDS = 8_000, 56_000
_WHOLE = 100 * RANKS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the subjects and print each row as it comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure the index.")
    parser.add_argument("--only", choices=SUBJECTS, action="append", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds; its figures mean nothing")
    parser.add_argument("--runs", type=_count, default=1, metavar="N", help="run each subject N times: medians, spread")
    parser.add_argument("--shards", type=_shards, default=1_000_000, metavar="N", help="the size of the large trees")
    parser.add_argument("--json", metavar="FILE", help="write all rows of all runs there as well")
    parser.add_argument("--dir", metavar="DIR", help="where to make the trees: a tmpfs, or the disk of interest")
    parser.add_argument("--peer", metavar="SCRIPT", help="a script that times SGLang's cleaner: see peer.py")
    options = parser.parse_args(arguments)
    shards = _QUICK_SHARDS if options.quick else options.shards
    peer = options.peer and os.path.abspath(options.peer)
    runs: list[list[Result]] = [[] for _ in range(options.runs)]
    print(header(), flush=True)
    directory = options.dir or roomy_directory(shards)
    with tempfile.TemporaryDirectory(prefix="nixl-index-bench-", dir=directory) as root:
        settings = Settings(Path(root), shards, options.quick, peer)
        for name in options.only or SUBJECTS:
            _run(name, settings, runs)
    if options.json:
        write_json(options.json, runs, shards=shards, quick=options.quick)


def _run(name: str, settings: Settings, runs: Sequence[list[Result]]) -> None:
    """Run one subject as often as there are runs, and print its rows: as they come where there is one run."""
    told: list[list[Result]] = []
    for run in runs:
        told.append([])
        for result in in_peace(name, SUBJECTS[name], settings):
            told[-1].append(result)
            if len(runs) == 1:
                print(line(result), flush=True)
        run += told[-1]
    if len(runs) > 1:
        print("\n".join(map(line, merged(told))), flush=True)


def _shards(text: str) -> int:
    """Whole pages, in the smallest tree too."""
    if _count(text) < _LEAST_SHARDS:
        raise argparse.ArgumentTypeError(f"{text} shards are too few to evict from: give {_LEAST_SHARDS:,} or more")
    return int(text) // _WHOLE * _WHOLE


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


if __name__ == "__main__":
    main()
