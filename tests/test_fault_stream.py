"""Garbage in the stream of the scout, and a stream that nobody reads: FAILURES 3 and 45."""

from __future__ import annotations

import os
import subprocess
import sys
from binascii import crc32
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, emitter, records, wire
from tests.support import DEADLINE, audit, eventually, page_key, write_page
from tests.test_fault_scout import change, link_of, replaced

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


def _write_into_stream(index: GroupIndex, data: bytes) -> None:
    """Into the scout's end of its pipe or socket, from aside."""
    link = link_of(index)
    if link._scout:
        os.write(link._scout._stream, data)
        return
    fd = os.open(f"/proc/self/fd/{link._stream}", os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _frame(kind: int, payload: bytes) -> bytes:
    return wire._HEADER.pack(wire._MAGIC, records.VERSION, kind, len(payload), crc32(payload, kind)) + payload


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0",
        b"garbage" * 100,
        wire.encode(records.Done(1))[:-1] + b"?",  # a wrong checksum
        _frame(200, b""),  # an unknown record
        _frame(1, b"[1"),  # one that cannot be read
        wire.encode(records.Directory(4_711, 0, ["47"])),  # one that cannot be true
        wire.encode(records.Directory(0, 1, ["zz"])),
        wire.encode(records.BaseState(9, "/", 1, 1, "", "")),
        wire.encode(records.Gone(0, [4_711], [b"a_m"])),
        wire.encode(records.Evicted(1, [0], [1], [1], [0])),  # an answer to nothing
        wire.encode(records.Done(4_711)),
    ],
    ids=range(11),
)
def test_f45_garbage_in_the_stream(watch: Watch, bases: list[Path], garbage: bytes) -> None:
    """Whatever it says: the index is whole afterwards, and it has not failed."""
    pages = [write_page(bases, page) for page in range(3)]
    index = watch(*bases)
    _write_into_stream(index, garbage)
    change(bases, 5)
    index.sync(DEADLINE)
    audit(index, bases)
    assert [group.key for group in Evictor(index).evict_oldest().evicted] == [page_key(0)]
    assert not any(path.exists() for path in pages[0])
    assert index.health().state == "live"


def test_f45_a_frame_that_never_ends(watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It swallows what follows, so nothing is heard of the scout any more."""
    monkeypatch.setattr(emitter, "PING_SECONDS", 0.1)
    monkeypatch.setattr(emitter, "STALL_SECONDS", 1.0)
    index = watch(*bases)
    _write_into_stream(index, wire._HEADER.pack(wire._MAGIC, records.VERSION, 1, wire.MAX_PAYLOAD, 0))
    change(bases, 1)
    replaced(index, bases)


def test_f03_a_full_pipe(watch: Watch, bases: list[Path]) -> None:
    """The index takes nothing for a while: the pipe fills, the scout holds back, and nothing is lost for it."""
    for number in range(64):
        (bases[0] / f"{number:02x}").mkdir()
    name = "x" * 200
    code = """if True:
        import os, sys
        for n in range(30_000):
            os.close(os.open(f"{sys.argv[1]}/{n % 64:02x}/{n}{sys.argv[2]}_m", os.O_CREAT | os.O_WRONLY))
    """
    index = watch(*bases)
    follower = index._follower
    with follower.lock:
        subprocess.run([sys.executable, "-c", code, bases[0], name], check=True, timeout=DEADLINE)
        eventually(lambda: index.health().queued_bytes >= emitter.MAX_QUEUED, "the queue is full")
    index.sync(2 * DEADLINE)
    assert len(index) == 30_000
    audit(index, bases)
    assert index.health().scout_restarts == 0
    assert index.health().queued_bytes < emitter.MAX_QUEUED
