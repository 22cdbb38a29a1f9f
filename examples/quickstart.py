"""See the index at work. `python quickstart.py` is a demonstration; `python quickstart.py DIR...` watches your own."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import select
import subprocess
import sys
import tempfile
import time

from nixl_index import Eviction, Evictor, GroupIndex, NixlIndexError

DEMO_SECONDS = 4.0
DEMO_QUOTA = 6 << 20
HEADER = "   time     groups     shards      on disk     oldest"
MHA = ["_0_2_k", "_0_2_v", "_1_2_k", "_1_2_v"]  # two ranks, each with files of its own
SHAPES = {  # model -> what follows `{hash}_{model}` in the names of a page's files
    "Qwen-Qwen3-32B": MHA,
    "deepseek-ai-DeepSeek-V3": [""],  # MLA: one file for all ranks
    "Qwen-Qwen3-Next-80B": [*MHA, "_0_2_mamba_temporal", "_1_2_mamba_temporal"],  # hybrid
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Follow the KV-cache pages below some base dirs (one a disk), live. A page is a group of files, "
        "its shards: one for each rank, K and V apart, and so on, in BASE/<2 hex digits>/, spread over all the disks.",
        epilog="Without arguments: a demonstration in a temporary directory, while another process writes pages. It "
        "takes some seconds, and its exit code is 1 if index and disk do not agree in the end.",
    )
    parser.add_argument("base", nargs="*", help="a base dir to watch; nothing is changed there without --evict")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long to watch (default: until Ctrl-C)")
    parser.add_argument("--evict", type=int, metavar="N", help="UNLINK the N oldest pages, each one whole, and end")
    parser.add_argument("--write-pages", action="store_true", help=argparse.SUPPRESS)  # the demonstration's writer
    options = parser.parse_args()
    if not options.base and (options.seconds, options.evict) != (math.inf, None):
        parser.error("--seconds and --evict are for base dirs of your own: name them")
    try:
        if options.write_pages:
            return write_pages(options.base)
        if not options.base:
            return demonstrate()
        with GroupIndex.watch(*options.base) as index:
            return watch(index, options.seconds) if options.evict is None else evict(index, options.evict)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    except (OSError, ValueError, NixlIndexError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 2


def demonstrate() -> int:
    """Follow the pages of another process, keep them below a quota, and compare index and disk in the end."""
    with tempfile.TemporaryDirectory(prefix="nixl-index-") as top:
        bases = [f"{top}/disk0", f"{top}/disk1"]
        for base in bases:
            os.mkdir(base)
        print(f"Another process writes pages to two disks below {top}.")
        print(f"Above {size(DEMO_QUOTA)} the oldest pages are evicted, each one with all its shards.\n")
        command = [sys.executable, __file__, "--write-pages", *bases]
        with GroupIndex.watch(*bases) as index:
            # In a session of its own Ctrl-C does not reach the writer: it ends when its stdin is closed.
            with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as writer:
                try:
                    evictions = keep_below_quota(index)
                finally:
                    writer.communicate()
            index.sync(timeout=10)
            evictions.append(Evictor(index).evict_bytes(max(0, index.nbytes - DEMO_QUOTA)))
            if oldest := index.oldest():
                print("\nThe next to go:", *(path[len(top) + 1 :] for path in oldest.paths), sep="\n  ")
            agree = audit(index, bases)
            print(f"{'All well' if agree else 'NOT WELL'}: {totals(index)} left; {told(evictions)} evicted.")
            return 0 if agree and writer.returncode == 0 else 1


def keep_below_quota(index: GroupIndex) -> list[Eviction]:
    evictor, evictions = Evictor(index), []
    start = time.monotonic()
    print(HEADER + "  evicted now")
    while (elapsed := time.monotonic() - start) < DEMO_SECONDS:
        line = status(index, elapsed)
        evictions.append(evictor.evict_bytes(max(0, index.nbytes - DEMO_QUOTA)))
        print(line, told(evictions[-1:]) if evictions[-1] else "", flush=True)
        time.sleep(0.5)
    return evictions


def write_pages(bases: list[str]) -> int:
    """Write a page every 15 ms, each file into the disk and bucket that SGLang would choose, until stdin is closed."""
    for number, (model, tails) in enumerate(itertools.cycle(SHAPES.items())):
        page_hash = hashlib.sha256(b"page %d" % number).hexdigest()[:16]  # in real names all 64 digits
        for name in (f"{page_hash}_{model}{tail}" for tail in tails):
            route = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
            bucket = f"{bases[(route >> 16) % len(bases)]}/{route & 0xFF:02x}"
            os.makedirs(bucket, exist_ok=True)
            with open(f"{bucket}/{name}", "wb") as file:
                file.write(bytes(16 << 10))
        if select.select([sys.stdin], [], [], 0.015)[0]:
            break
    return 0


def audit(index: GroupIndex, bases: list[str]) -> bool:
    """Does the index have the files that are on the disk, and no others, with the mtimes that they have there?"""
    walks = itertools.chain.from_iterable(map(os.walk, bases))
    paths = [os.path.join(directory, name) for directory, _, names in walks for name in names]
    disk = {path: os.lstat(path).st_mtime_ns for path in paths}
    indexed = {shard.path: shard.mtime_ns for group in index for shard in group.shards}
    differ = sorted(path for path in disk | indexed if disk.get(path) != indexed.get(path))
    print(f"\nAudit: {len(disk):,} files on disk, {len(indexed):,} shards in the index, {len(differ)} differences.")
    for path in differ[:5]:
        print(f"  {path}: mtime {disk.get(path)} on disk, {indexed.get(path)} in the index")
    return not differ


def watch(index: GroupIndex, seconds: float) -> int:
    """Print a line a second, until the time is up or Ctrl-C."""
    start = time.monotonic()
    print(HEADER)
    try:
        while True:
            elapsed = time.monotonic() - start
            print(status(index, elapsed), flush=True)
            if elapsed >= seconds:
                break
            time.sleep(min(1.0, seconds - elapsed))
    except KeyboardInterrupt:
        print()
    print(f"The index is {index.health().state}: {totals(index)}.")
    return 0


def evict(index: GroupIndex, count: int) -> int:
    """Evict so many groups, and say what came of it. The exit code is 1 if some could not be unlinked."""
    print(f"Before:  {totals(index)}.")
    eviction = Evictor(index).evict_oldest(count)
    for group in eviction.evicted:
        print(f"evicted  {group.key}: {group.shards} shards, {size(group.disk_bytes)}")
    for left in eviction.skipped + eviction.failed:
        print(f"left     {left.key}: {left.reason}")
    print(f"After:   {totals(index)}; {told([eviction])} evicted.")
    return 1 if eviction.failed else 0


def status(index: GroupIndex, elapsed: float) -> str:
    oldest, state = index.oldest(), index.health().state
    age = f"{(time.time_ns() - oldest.recency_ns) / 1e9:,.1f} s" if oldest else "-"
    trouble = "" if state == "live" else f"   {state}"
    return f"{elapsed:>5.1f} s {len(index):>10,} {index.shards:>10,} {size(index.nbytes):>12} {age:>10}{trouble}"


def told(evictions: list[Eviction]) -> str:
    groups = sum(len(eviction.evicted) for eviction in evictions)
    return f"{groups:,} groups, {size(sum(eviction.disk_bytes for eviction in evictions))}"


def totals(index: GroupIndex) -> str:
    return f"{len(index):,} groups, {index.shards:,} shards, {size(index.nbytes)}"


def size(count: float) -> str:
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:,.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


if __name__ == "__main__":
    sys.exit(main())
