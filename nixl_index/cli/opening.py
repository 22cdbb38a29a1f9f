"""What every command begins with: an index of the base dirs that were named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nixl_index.cleaner import Cleaner
from nixl_index.cli.exits import UsageError
from nixl_index.cli.progress import progress_shown
from nixl_index.cli.text import count
from nixl_index.errors import NixlIndexError
from nixl_index.index import GroupIndex
from nixl_index.keys import KeyScheme
from nixl_index.layout import Layout


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


def usage_of(index: GroupIndex, cleaner: Cleaner, problems: list[str]) -> dict[str, float]:
    """How full the file system of each base dir is, in percent. What is unknown is left out, and said in `problems`.
    Waits for the scout; raises TimeoutError where a disk does not answer in 30 s."""
    bases = index._follower.bases
    volumes = cleaner.measure(problems)
    return {bases[base].path: volume.usage for volume in reversed(volumes) for base in volume.bases}
