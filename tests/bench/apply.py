"""What the host pays for a shard that the stream tells of: decode, key, order. No disk, no threads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import nullcontext

from nixl_index import KeyScheme, Layout, records, wire
from nixl_index.follower import Follower
from nixl_index.records import Message
from tests.bench.harness import Settings
from tests.bench.rows import Result

RANKS = 8
BATCH = 100
"""What a scout tells at once at 5,000 files a second."""
BUCKETS = 256


class _Nobody:
    """A source that is not there."""

    def send(self, message: Message) -> None: ...

    def post(self) -> None: ...

    def healthy(self) -> None: ...

    def replace(self, reason: str) -> None: ...


def run(settings: Settings) -> Iterator[Result]:
    """New pages of eight shards, beside the same where each shard goes the long way."""
    pages = 500 if settings.quick else 25_000
    alone = _seconds_a_record(pages, share_moves=False)
    shared = _seconds_a_record(pages, share_moves=True)
    yield Result.of("apply.new_shard", 1e6 * shared, "us", 1e6 * alone, against="upsert by upsert", batch=BATCH)


def _seconds_a_record(pages: int, share_moves: bool) -> float:
    follower = _follower()
    if not share_moves:
        follower.order.batch = nullcontext  # type: ignore[method-assign, assignment]
    frames = list(_frames(pages, BATCH))
    reader = wire.FrameReader()
    begun = time.process_time()
    for data in frames:
        for kind, payload in reader.feed(data):
            message = wire.decode(kind, payload)
            assert isinstance(message, records.Shards)
            follower.writer.on_shards(message)
    spent = time.process_time() - begun
    assert follower.order.totals.count == pages * RANKS
    return spent / (pages * RANKS)


def _follower() -> Follower:
    follower = Follower(["/base"], KeyScheme(), Layout(), (30.0, 0.0), False, _Nobody())
    follower.order.open()
    for number in range(BUCKETS):
        follower._on_directory(records.Directory(number, 0, [f"{number:02x}"]))
    return follower


def _frames(pages: int, batch: int) -> Iterator[bytes]:
    rows: list[tuple[int, int, int, bytes]] = []
    for page in range(pages):
        key = hashlib.sha256(str(page).encode()).hexdigest()
        for rank in range(RANKS):
            name = f"{key}_Qwen-Qwen3-32B_{rank}_{RANKS}".encode()
            bucket = hashlib.blake2b(name, digest_size=1).digest()[0]
            rows.append((bucket, 1_700_000_000 * 10**9 + page * RANKS + rank, 4096, name))
            if len(rows) == batch:
                yield wire.encode(records.Shards(0, *zip(*rows, strict=True)))
                rows.clear()
    if rows:
        yield wire.encode(records.Shards(0, *zip(*rows, strict=True)))
