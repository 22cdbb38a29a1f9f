"""SGLang's own L3 cleaner replaced by one import, beside a tree of files as SGLang names them.

    python examples/sglang_dropin.py

It works in a temporary directory: writes pages of two ranks over two disks, oldest first, until they are too many for
the capacity, and shows that the cleaner took the oldest ones, each with all of its files.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

# In SGLang: from sglang.srt.mem_cache.storage.nixl.nixl_cleaner import HiCacheL3Cleaner
from nixl_index.sglang import HiCacheL3Cleaner

PAGES = 100
TAILS = ("_0_2_k", "_0_2_v", "_1_2_k", "_1_2_v")  # two ranks, K and V apart
SHARD = 16 << 10
CAPACITY_GB = 0.005  # 10^9 bytes, as SGLang counts


def write_page(disks: list[str], number: int) -> None:
    page = hashlib.sha256(b"page %d" % number).hexdigest()
    for name in (f"{page}_Qwen-Qwen3-32B{tail}" for tail in TAILS):
        route = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        path = Path(disks[(route >> 16) % len(disks)], f"{route & 0xFF:02x}", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(SHARD))
        os.utime(path, (number, number))  # as if there had been a second between two pages


def files_of(disks: list[str]) -> Counter[str]:
    """How many files each page has."""
    return Counter(path.name[:64] for disk in disks for path in Path(disk).glob("*/*"))


def main() -> int:
    with tempfile.TemporaryDirectory() as top:
        disks = [f"{top}/disk0", f"{top}/disk1"]
        for disk in disks:
            os.mkdir(disk)
        for number in range(PAGES):
            write_page(disks, number)
        print(f"{PAGES} pages, {sum(files_of(disks).values())} files, {PAGES * len(TAILS) * SHARD:,} bytes")
        cleaner = HiCacheL3Cleaner(
            disks, tp_rank=0, high_watermark=80.0, low_watermark=70.0, interval_sec=1.0, capacity_gb=CAPACITY_GB
        )
        cleaner.start()  # returns at once; on any other rank it does nothing at all
        goal = int(0.7 * CAPACITY_GB * 1e9) // (len(TAILS) * SHARD)
        until = time.monotonic() + 20
        while len(files_of(disks)) > goal and time.monotonic() < until:
            time.sleep(0.1)
        cleaner.stop()
        left = files_of(disks)
    newest = {hashlib.sha256(b"page %d" % number).hexdigest() for number in range(PAGES - len(left), PAGES)}
    well = left.keys() == newest and set(left.values()) == {len(TAILS)}
    print(f"{len(left)} pages left, {'the newest ones, each one whole' if well else 'and not those that should be'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
