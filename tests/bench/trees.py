"""Trees such as an inference server makes: names, buckets and disks as its NIXL backend chooses them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b, sha256
from itertools import count
from pathlib import Path

MODEL = "org-Model-32B"
RANKS = 8
"""Shards a page, one of each tensor-parallel rank."""
FIRST_MTIME = 1_700_000_000


def route(name: str, bases: int) -> tuple[int, str]:
    """The number of its base and its bucket."""
    value = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    return (value >> 16) % bases, f"{value & 0xFF:02x}"


def page_paths(bases: Sequence[str], page: int, ranks: int = RANKS) -> list[str]:
    """The paths of a page's shards."""
    digest = sha256(str(page).encode()).hexdigest()
    paths = []
    for rank in range(ranks):
        name = f"{digest}_{MODEL}_{rank}_{ranks}"
        base, bucket = route(name, len(bases))
        paths.append(f"{bases[base]}/{bucket}/{name}")
    return paths


def all_paths(bases: Sequence[str], ranks: int = RANKS) -> Iterator[str]:
    """The paths of all shards, page by page, without end."""
    for page in count():
        yield from page_paths(bases, page, ranks)


def make_bases(root: Path, disks: int = 2) -> list[str]:
    """New base dirs, each with its 256 buckets, as a server makes them when it starts."""
    bases = [str(root / f"disk{number}") for number in range(disks)]
    for base in bases:
        for bucket in range(256):
            os.makedirs(f"{base}/{bucket:02x}")
    return bases


def fill(bases: Sequence[str], pages: int, ranks: int = RANKS, size: int = 0) -> None:
    """Make so many pages, or make them anew; page i has the mtime `FIRST_MTIME` + i seconds."""
    content = memoryview(bytes(size))
    for page in range(pages):
        for path in page_paths(bases, page, ranks):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            if size:
                os.write(fd, content)
                os.fsync(fd)  # a disk takes longer to unlink what it has than what it is still to get
            os.utime(fd, (FIRST_MTIME + page, FIRST_MTIME + page))
            os.close(fd)


def read_disk(bases: Sequence[str]) -> dict[str, int]:
    """Path and mtime, in ns, of every shard that is there."""
    found = {}
    for base in bases:
        for bucket in os.listdir(base):
            with os.scandir(f"{base}/{bucket}") as entries:
                for entry in entries:
                    found[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
    return found
