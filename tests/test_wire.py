"""Records survive the wire whole, or not at all."""

from __future__ import annotations

import random
import struct
from binascii import crc32
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nixl_index import WireError, records, wire
from nixl_index.records import Message

MESSAGES: list[Message] = [
    records.Hello(1, 7),
    records.Fault("OSError", "caf\u00e9 \udcff"),
    records.BaseState(0, "/disk/\udcff", 2**40, 2**60, "", "nfs4"),
    records.Directory(3, 1, ["tenant", "ab"]),
    records.Listing(3, records.Phase.DONE, records.Origin.SCRUB, 1),
    records.Sweep(),
    records.Lost(records.OVERFLOW),
    records.Crawled(2),
    records.Status(256, 1, ["no room"], 2, 0, ""),
    records.Done(9),
    records.Shards(0, [1, 2], [-(2**63) + 1, 2**63 - 1], [0, 2**60], [b"a_m", b"\xff\n"]),
    records.Reads([1, 1], [b"a", b"b"]),
    records.Gone(4, [1], [b"a_m"]),
    records.Evicted(5, [0, 3], [8, 0], [4096, 0], [0, -1]),
    records.Config(1, [["/disk", 1, 2, 0.0]], "*/[0-9a-f]", [[0, 0, ["ab"]]], 30.0, 3600, 1),
    records.Sync(1),
    records.Measure(5),
    records.Measured(5, [[2049, 10**12, 10**9, 1000, 10, ""]]),
    records.Lock(6, [[0], [1]]),
    records.Locked(6, ["", "held by 7"]),
    records.Scan(2, -1),
    records.Stop(),
    records.Look(0, [], []),
    records.Look(3, [1], [b"x"]),
    records.Evict(4, [2, 1], [0, 1, 2], [1, 2, 3], [b"a", b"b", b"c"]),
]


def plain(message: Message) -> list[object]:
    return [type(message).__name__, *(list(v) if not isinstance(v, (str, int, float)) else v for v in message)]


def decode_all(data: Iterable[bytes]) -> list[Message]:
    reader = wire.FrameReader()
    messages = [wire.decode(*frame) for piece in data for frame in reader.feed(piece)]
    reader.close()
    return messages


def test_every_kind_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(wire._KINDS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Message) -> None:
    (back,) = decode_all([wire.encode(message)])
    assert plain(back) == plain(message)


@pytest.mark.parametrize("size", [1, 3, 16, 1000])
def test_pieces_of_any_size(size: int) -> None:
    data = b"".join(map(wire.encode, MESSAGES))
    back = decode_all(data[at : at + size] for at in range(0, len(data), size))
    assert [plain(message) for message in back] == [plain(message) for message in MESSAGES]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_cut_anywhere(message: Message) -> None:
    data = wire.encode(message)
    for end in range(1, len(data)):
        with pytest.raises(WireError, match="ended within a record"):
            decode_all([data[:end]])


def test_garbage_version_and_unknown_records() -> None:
    good = wire.encode(records.Sync(1))
    for bad, what in [
        (b"\0" * 64, "garbage"),
        (good[:2] + b"\x63" + good[3:], "version 99"),
        (good[:8] + bytes(4) + good[12:], "checksum"),
        (good[:4] + struct.pack("=I", 2**31) + good[8:], "garbage"),
    ]:
        with pytest.raises(WireError, match=what):
            decode_all([bad])
    for kind in (0, 99, 255):
        with pytest.raises(WireError, match="unknown record"):
            wire.decode(kind, b"[]")


def test_what_came_before_garbage_is_kept() -> None:
    reader = wire.FrameReader()
    frames = reader.feed(wire.encode(records.Done(1)) + b"garbage garbage garbage")
    assert wire.decode(*next(frames)) == records.Done(1)
    with pytest.raises(WireError):
        next(frames)


def test_too_large_for_a_frame() -> None:
    with pytest.raises(WireError, match="too large"):
        wire.encode(records.Fault("OSError", "x" * wire.MAX_PAYLOAD))


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_all([data + b"\0"])


@given(st.integers(1, len(wire._KINDS)), st.binary(max_size=120))
def test_any_payload_is_a_record_or_an_error(kind: int, payload: bytes) -> None:
    """Even with a right checksum."""
    frame = wire._HEADER.pack(wire._MAGIC, records.VERSION, kind, len(payload), crc32(payload, kind)) + payload
    try:
        (message,) = decode_all([frame])
    except WireError:
        return
    assert [plain(back) for back in decode_all([wire.encode(message)])] == [plain(message)]


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bits_are_errors(seed: int) -> None:
    chance = random.Random(seed)
    for message in MESSAGES:
        data = bytearray(wire.encode(message))
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with pytest.raises(WireError):
            decode_all([bytes(data)])
