"""Reading a directory in steps. Used by the scout alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import monotonic

STEP_ENTRIES = 2_000
STEP_SECONDS = 0.02
"""A step ends at whichever comes first, so that events and commands are never far behind."""
_CLOCK_ENTRIES = 64

Found = dict[bytes, os.stat_result]
"""Names that a step came by, and what they are."""


def list_bucket(entries: Iterator[os.DirEntry[bytes]], on_error: Callable[[OSError], None]) -> Iterator[Found]:
    """`lstat` each entry; a step at a time. What cannot be looked at is left out, after a call of `on_error`."""
    found: Found = {}
    until = monotonic() + STEP_SECONDS
    for count, entry in enumerate(entries, 1):
        try:
            found[entry.name] = entry.stat(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it went meanwhile; the event tells
        except OSError as error:
            on_error(error)
        if len(found) == STEP_ENTRIES or (count % _CLOCK_ENTRIES == 0 and monotonic() > until):
            yield found
            found = {}
            until = monotonic() + STEP_SECONDS
    yield found
