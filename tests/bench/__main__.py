"""The command line: `python -m tests.bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.bench import apply, evict, live, pop
from tests.bench.harness import Result, Settings, Subject, header, line, write_json

SUBJECTS: dict[str, Subject] = {"pop": pop.run, "apply": apply.run, "evict": evict.run, "live": live.run}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the subjects and print each row as it comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure the index.")
    parser.add_argument("--only", choices=SUBJECTS, action="append", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds; its figures mean nothing")
    parser.add_argument("--json", metavar="FILE", help="write all rows there as well")
    parser.add_argument("--dir", metavar="DIR", help="where to make the trees: a tmpfs, or the disk of interest")
    options = parser.parse_args(arguments)
    settings = Settings(options.quick, options.dir)
    results: list[Result] = []
    print(header(), flush=True)
    for name in options.only or SUBJECTS:
        for result in SUBJECTS[name](settings):
            results.append(result)
            print(line(result), flush=True)
    if options.json:
        write_json(options.json, results, settings)


if __name__ == "__main__":
    main()
