"""The records of the stream and the commands: encode and decode. Pure.

A frame is a header (magic, version, kind, length, CRC-32 of kind and payload) and a payload. What is rare is a JSON
list; what comes by the thousand is a table in columns, which both ends handle with a few C calls a batch. Byte order is
the machine's: the magic number tells when the two ends differ.
"""

from __future__ import annotations

import json
import struct
from array import array
from binascii import crc32
from collections.abc import Iterator
from typing import Any, TypeAlias

from nixl_index import records as r
from nixl_index.errors import WireError
from nixl_index.records import VERSION, Message

MAX_PAYLOAD = 16 << 20
"""Bytes. No frame is larger: a length above it is garbage, not a reason to wait for more."""

_MAGIC = 0x4E58
_HEADER = struct.Struct("=HBBII")
_U32 = struct.Struct("=I")


# What each field of a JSON record is: int, str, float, list of str, list of lists.
_FIELDS: dict[type[Any], str] = {
    r.Hello: "ii",
    r.Fault: "ss",
    r.BaseState: "isiiss",
    r.Directory: "iin",
    r.Listing: "iiii",
    r.Sweep: "",
    r.Lost: "s",
    r.Crawled: "i",
    r.Status: "iiniis",
    r.Done: "i",
    r.Config: "ilslffi",
    r.Measured: "il",
    r.Locked: "in",
    r.Measure: "i",
    r.Lock: "il",
    r.Sync: "i",
    r.Scan: "ii",
    r.Stop: "",
}
# The tables: how many single numbers lead, and the type code of each column after them. A column of names comes last.
_TABLES: dict[type[Any], tuple[int, str]] = {
    r.Shards: (1, "Iqq"),
    r.Reads: (0, "I"),
    r.Gone: (1, "I"),
    r.Evicted: (1, "BIqi"),
    r.Look: (1, "I"),
    r.Evict: (1, "IIq"),
}
_NAMED = (r.Shards, r.Reads, r.Gone, r.Look, r.Evict)

_KINDS: tuple[type[Any], ...] = (*_FIELDS, *_TABLES)
_KIND_OF = {kind: number for number, kind in enumerate(_KINDS, 1)}

Frame: TypeAlias = tuple[int, bytes]
"""Kind and payload."""


def encode(message: Message) -> bytes:
    """The frame of a message."""
    kind = type(message)
    if kind in _TABLES:
        payload = _encode_table(message, *_TABLES[kind])
    else:
        payload = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a {kind.__name__} of {len(payload)} bytes is too large for a frame")
    return _HEADER.pack(_MAGIC, VERSION, _KIND_OF[kind], len(payload), crc32(payload, _KIND_OF[kind])) + payload


def _encode_table(message: Any, singles: int, codes: str) -> bytes:
    parts = [_U32.pack(number) for number in message[:singles]]
    for code, column in zip(codes, message[singles:], strict=False):
        parts += (_U32.pack(len(column)), array(code, column).tobytes())
    if type(message) in _NAMED:
        parts.append(b"\0".join(message[-1]))
    return b"".join(parts)


def decode(kind: int, payload: bytes) -> Message:
    """The message of a frame's kind and payload: whole, or WireError."""
    if not 0 < kind <= len(_KINDS):
        raise WireError(f"unknown record {kind}")
    cls = _KINDS[kind - 1]
    try:
        return _decode_table(cls, payload) if cls in _TABLES else _decode_json(cls, payload)  # type: ignore[no-any-return]
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise WireError(f"a {cls.__name__} that cannot be read: {error}") from error


def _decode_json(cls: type[Any], payload: bytes) -> Any:
    values = json.loads(payload)
    fields = _FIELDS[cls]
    if not isinstance(values, list) or len(values) != len(fields):
        raise ValueError(f"{len(fields)} values expected")
    for value, field in zip(values, fields, strict=True):
        if not _is_field(value, field):
            raise ValueError(f"{value!r} where {field!r} was expected")
    return cls(*values)


def _is_field(value: object, field: str) -> bool:
    if field in "nl":
        return isinstance(value, list) and all(type(item) is (str if field == "n" else list) for item in value)
    return type(value) in {"i": (int,), "s": (str,), "f": (int, float)}[field]


def _decode_table(cls: type[Any], payload: bytes) -> Any:
    singles, codes = _TABLES[cls]
    values: list[Any] = [_U32.unpack_from(payload, 4 * i)[0] for i in range(singles)]
    at = 4 * singles
    for code in codes:
        column = array(code)
        (count,) = _U32.unpack_from(payload, at)
        end = at + 4 + count * column.itemsize
        if end > len(payload):
            raise ValueError("cut short")
        column.frombytes(payload[at + 4 : end])
        values.append(column)
        at = end
    rows = len(values[-1])
    if cls in _NAMED:
        names = payload[at:].split(b"\0") if rows else []
        if len(names) != rows or not all(names) or b"/" in payload[at:] or (not rows and at != len(payload)):
            raise ValueError("names and rows differ")
        values.append(names)
    elif at != len(payload):
        raise ValueError("too long")
    columns = values[singles:]
    if cls is r.Evict and sum(columns.pop(0)) != rows:
        raise ValueError("lengths and rows differ")
    if any(len(column) != rows for column in columns):
        raise ValueError("columns differ in length")
    return cls(*values)


class FrameReader:
    """Cuts a byte stream into frames. Not thread-safe."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """(kind, payload) of each frame that is complete now. Raises WireError at the first thing that is none."""
        rest = self._rest + data if self._rest else data
        at = 0
        try:
            while len(rest) - at >= _HEADER.size:
                magic, version, kind, length, checksum = _HEADER.unpack_from(rest, at)
                if magic != _MAGIC or length > MAX_PAYLOAD:
                    raise WireError("garbage where a record should start")
                if version != VERSION:
                    raise WireError(f"protocol version {version}, where this side speaks {VERSION}")
                start = at + _HEADER.size
                if len(rest) - start < length:
                    break
                payload = rest[start : start + length]
                if crc32(payload, kind) != checksum:
                    raise WireError("a record with a wrong checksum")
                at = start + length
                yield kind, payload
        finally:
            self._rest = rest[at:]

    def close(self) -> None:
        """The stream ended. Raises WireError where it ended within a frame."""
        if self._rest:
            raise WireError(f"the stream ended within a record ({len(self._rest)} bytes of it came)")
