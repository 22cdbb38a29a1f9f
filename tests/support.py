"""What the tests share: pages on the disk, the disk's own account of itself, and processes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nixl_index import GroupIndex

MODEL = "Qwen-Qwen3-32B"
DEADLINE = 20.0


def route(name: str, bases: list[Path]) -> Path:
    """Where SGLang puts a file of this name."""
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return bases[(number >> 16) % len(bases)] / f"{number & 0xFF:02x}" / name


def page_key(page: int, model: str = MODEL) -> str:
    return f"{hashlib.sha256(str(page).encode()).hexdigest()}_{model}"


def page_names(page: int, ranks: int = 2, components: Iterable[str] = ("",), model: str = MODEL) -> list[str]:
    key = page_key(page, model)
    return [f"{key}_{rank}_{ranks}{component}" for rank in range(ranks) for component in components]


def write(path: Path, data: bytes = b"x", mtime: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mtime is not None:
        os.utime(path, ns=(int(mtime * 1e9), int(mtime * 1e9)))
    return path


def write_page(
    bases: list[Path],
    page: int,
    *,
    ranks: int = 2,
    components: Iterable[str] = ("",),
    data: bytes = b"x",
    mtime: float | None = None,
) -> list[Path]:
    """The shards of a page, one a rank and component; as old as its number says, unless told otherwise."""
    when = 1_700_000_000 + page if mtime is None else mtime
    return [write(route(name, bases), data, when) for name in page_names(page, ranks, components)]


def on_disk(bases: Iterable[Path], pattern: str = "[0-9a-f][0-9a-f]") -> dict[str, tuple[int, int]]:
    """Path -> (mtime, disk bytes) of every regular file in a bucket that is not hidden or temporary."""
    found = {}
    for base in bases:
        for bucket in base.glob(pattern) if pattern else [base]:
            if bucket.is_symlink() or not bucket.is_dir():
                continue
            for entry in os.scandir(bucket):
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".") and ".tmp" not in entry.name:
                    stat = entry.stat(follow_symlinks=False)
                    found[entry.path] = (stat.st_mtime_ns, stat.st_blocks * 512 or stat.st_size)
    return found


def in_index(index: GroupIndex) -> dict[str, tuple[int, int]]:
    """Path -> (mtime, disk bytes) of every shard that the index can evict."""
    return {shard.path: (shard.mtime_ns, shard.disk_bytes) for group in index for shard in group.shards}


def audit(index: GroupIndex, bases: Iterable[Path], pattern: str = "[0-9a-f][0-9a-f]") -> None:
    """The index is the disk, shard by shard, and sound in itself."""
    index.sync(DEADLINE)
    disk, known = on_disk(bases, pattern), in_index(index)
    assert known.keys() == disk.keys(), (sorted(known.keys() - disk.keys())[:5], sorted(disk.keys() - known.keys())[:5])
    assert {path: mtime for path, (mtime, _) in known.items()} == {path: mtime for path, (mtime, _) in disk.items()}
    settled = {path for path in disk if disk[path][1] == known[path][1]}
    # Delayed allocation settles the disk bytes after the fact, and tells nobody.
    assert all(disk[path][1] > known[path][1] for path in disk.keys() - settled)
    follower = index._follower
    with follower.lock:
        follower.order.check()
    assert index.shards == len(known)
    assert index.nbytes == sum(size for _, size in known.values())


def eventually(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Wait for a condition that no call of the library waits for."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.005)
