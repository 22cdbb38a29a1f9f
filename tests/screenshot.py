"""A picture of `nixl-index top` over two disks that a writer fills: `python -m tests.screenshot OUT.svg`.

The disks are tmpfs mounts at /mnt, in a mount namespace of its own (`unshare`), so that the picture shows paths as
users have them, and that nobody else sees the mounts.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

from rich.console import Console

from nixl_index import Cleaner, GroupIndex
from nixl_index.cli.live import draw
from nixl_index.cli.top import Lookout, View
from nixl_index.watermarks import Watermarks
from tests.support import eventually, write_page

SIZES = {"/mnt/disk0": 96, "/mnt/disk1": 128}
"""In MiB."""
MARKS = Watermarks(80.0, 70.0)
_SHARD = bytes(64 << 10)
_WRITES_SECONDS = 0.02
_LOOK_SECONDS = 3.0


def main() -> None:
    """Mount, write, look, and draw."""
    if len(sys.argv) == 2:
        command = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", "tests.screenshot", sys.argv[1], "x"]
        sys.exit(subprocess.run(command, check=False).returncode)
    mount("/mnt", 1)
    bases = [Path(disk, "l3") for disk in SIZES]
    for disk, size in SIZES.items():
        os.mkdir(disk)
        mount(disk, size)
        os.mkdir(f"{disk}/l3")
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(bases, stop))
    with GroupIndex.watch(*bases) as index, Cleaner(index, MARKS.high, MARKS.low) as cleaner:
        writer.start()
        eventually(lambda: cleaner.health().evicted_groups, "a disk was full for the first time")
        with GroupIndex.watch(*bases) as watching:  # as `top` does, beside the process that evicts
            lookout = Lookout(watching, MARKS, None)
            time.sleep(_LOOK_SECONDS)
            view = lookout.look()
        stop.set()
        writer.join()
    Path(sys.argv[1]).write_text(picture(view))


def mount(point: str, size: int) -> None:
    """A file system of so many MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", point], check=True)


def write(bases: list[Path], stop: threading.Event) -> None:
    """Pages, one after the other, as old as they are."""
    for page in count():
        if stop.wait(_WRITES_SECONDS):
            return
        write_page(bases, page, components=("_k", "_v"), data=_SHARD, mtime=time.time())


def picture(view: View) -> str:
    """As SVG, in whatever monospaced font there is: none is fetched from elsewhere."""
    console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(draw(view))
    svg = console.export_svg(title="nixl-index top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


if __name__ == "__main__":
    main()
