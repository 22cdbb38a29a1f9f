"""What it is worth to say that a page was read: FIFO without `touch`, LRU with it.

    python examples/lru_touch.py

It works in a temporary directory. A prompt that everybody shares (4 pages) is read before each new page is written; the
disk has room for 6. By age of the files alone the shared pages go out again and again, though nothing is read more.
Where the server cannot be changed, `GroupIndex.watch(..., reads=True)` has inotify tell of the reads.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from nixl_index import Evictor, GroupIndex

SHARED, NEW, ROOM = 4, 60, 6


def key_of(name: str) -> str:
    return f"{hashlib.sha256(name.encode()).hexdigest()}_demo-model"


def write(base: Path, key: str) -> None:
    path = base / key[:2] / key  # one file a page, as of an MLA model
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(4096))


def hits(base: Path, touches: bool) -> int:
    """How many reads of a shared page found it; what was not found is written again, as a server would."""
    found = 0
    with GroupIndex.watch(base) as index:
        evictor = Evictor(index)
        for number in range(NEW):
            for key in [key_of(f"shared {page}") for page in range(SHARED)]:
                if key in index:
                    found += 1
                    if touches:
                        index.touch([key])  # O(log n), and never waits for the disk
                else:
                    write(base, key)
            write(base, key_of(f"new {number}"))
            index.sync()  # so that the figures do not depend on how fast this machine is
            evictor.evict_oldest(max(0, len(index) - ROOM))
    return found


def main() -> int:
    results = []
    for touches in (False, True):
        with tempfile.TemporaryDirectory() as base:
            results.append(hits(Path(base), touches))
        print(f"{'LRU ' if touches else 'FIFO'}: {results[-1]} of {SHARED * NEW} reads were hits")
    return 0 if results[0] < results[1] == SHARED * (NEW - 1) else 1


if __name__ == "__main__":
    sys.exit(main())
