"""What every command begins with: an index of the base dirs that were named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nixl_index.cli.exits import UsageError
from nixl_index.cli.progress import progress_shown
from nixl_index.cli.text import count
from nixl_index.errors import NixlIndexError
from nixl_index.index import GroupIndex
from nixl_index.keys import KeyScheme
from nixl_index.layout import Layout
from nixl_index.torn import is_torn

_LOOKED_AT = 1_000


@contextmanager
def opened(options: argparse.Namespace, *, block: bool = True) -> Iterator[GroupIndex]:
    """An index of the base dirs, followed, and scanned unless `block` is False. Raises UsageError where they cannot be
    watched."""
    with progress_shown() as on_progress:
        try:
            index = GroupIndex.watch(
                *options.paths,
                scheme=KeyScheme(options.model),
                layout=options.layout,
                block=block,
                on_progress=on_progress,
            )
        except (OSError, ValueError, NixlIndexError) as error:
            raise UsageError(str(error)) from error
        with index:
            if block:
                say_if_empty(index, options.layout)
            yield index


def say_if_empty(index: GroupIndex, layout: Layout) -> None:
    """Somebody who sees zeros wonders what was looked for, and where."""
    if index.shards:
        return
    health = index.health()
    if health.foreign:
        note = f"{count(health.foreign, 'file')} there, but of other models than --model names"
    elif health.directories_known:
        note = f"none lies in the directories of the layout {layout.pattern!r}"
    else:
        note = f"no directory fits the layout {layout.pattern!r}: is this the base dir? See --layout"
    print(f"nixl-index: no shards: {note}", file=sys.stderr)


def doubt_of_bases(index: GroupIndex) -> str:
    """Why the base dirs may not be all that hold these groups; empty where they seem to be. Who names one of two disks
    has half of each group evicted. O(1): it looks at the oldest groups."""
    follower = index._follower
    with follower.lock:
        oldest = follower.order.after(None, _LOOKED_AT)
    torn = sum(is_torn(follower.order.packing, popped.packed, None) for popped in oldest)
    if 2 * torn <= len(oldest):
        return ""
    return (
        f"of the {len(oldest):,} oldest groups {torn:,} lack ranks: were the base dirs of all disks named? Else half of"
        " each group goes, and the rest is of no use (fine where other hosts store these ranks)"
    )
