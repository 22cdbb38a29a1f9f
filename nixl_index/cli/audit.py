"""`nixl-index audit`: does the index see what happens, and what lies there besides."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from time import sleep

from nixl_index.cli import text
from nixl_index.cli.exits import FAILED, FINE
from nixl_index.cli.opening import opened
from nixl_index.cli.options import checked, seconds
from nixl_index.cli.strays import find_strays
from nixl_index.index import GroupIndex
from nixl_index.keys import KeyScheme
from nixl_index.torn import missing_ranks

HELP = "compare index and disk, and list torn groups and files that are no shards"
DESCRIPTION = """\
Scan the base dirs, follow them for --seconds, then list everything again and compare:
a difference is something that was written, rewritten or removed and that no event
told of. On a local file system there should be none; on a network file system it is
what other hosts do.

Then list torn groups, which lack a rank that their file names speak of (one that is
being written is torn for a moment), and files below the base dirs that are no shards,
and that nothing ever evicts.

It changes nothing, and never opens a shard."""
EXAMPLE = """\
example:
  nixl-index audit /mnt/disk0/l3 /mnt/disk1/l3 --seconds 60

exit code 1: index and disk differed. Torn groups and files that are no shards are no
difference."""

SHOWN = 5
"""How many paths are named of each kind, without -v."""
_UNTOLD = {
    "missing": "written",
    "extra": "removed",
    "rewritten": "rewritten",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    parser.add_argument(
        "--seconds", type=checked(seconds), metavar="N", help="how long to follow before (default: not at all)"
    )


def run(options: argparse.Namespace) -> int:
    """The command."""
    shown = sys.maxsize if options.verbose else SHOWN
    with opened(options) as index:
        if options.seconds:
            sleep(options.seconds)
        audit = index.audit()
        whole = f"{text.count(len(index), 'group')}, {text.count(index.shards, 'shard')}, {text.size(index.nbytes)}"
        print(f"index and disk {'differed' if audit else 'agree'}: {whole}")
        for kind, what in _UNTOLD.items():
            paths = getattr(audit, kind)
            _tell(f"{text.count(len(paths), 'file')} {what}, and no event told of it", paths[:shown], len(paths))
        torn = list(_torn(index))
        _tell(text.count(len(torn), "torn group"), torn[:shown], len(torn))
        bases = [base.path for base in index._follower.bases]
    for base in bases:
        strays = find_strays(base, options.layout, KeyScheme(options.model), shown)
        for kind, found in sorted(strays.items()):
            files = f"{text.count(found.files, 'file')} {kind}, {text.size(found.nbytes)}"
            _tell(f"never evicted, below {text.printable(base)}: {files}", found.paths, found.files)
    return FAILED if audit else FINE


def _torn(index: GroupIndex) -> Iterator[str]:
    packing = index._follower.order.packing
    for group in index.torn():
        missing = missing_ranks(row[1] for row in packing.rows(group.packed))
        lacks = (f"{','.join(map(str, sorted(ranks)))}{part and f' of {part}'}" for part, ranks in missing.items())
        yield f"{group.key}: lacks rank {'; '.join(lacks)}"


def _tell(what: str, names: Sequence[str], total: int) -> None:
    if total:
        print("\n".join([what, *text.indented([text.printable(name) for name in names], total)]))
