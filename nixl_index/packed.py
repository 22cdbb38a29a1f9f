"""The shards of one group, packed into one `bytes`. Pure: no lock, no I/O.

A million shards as Python objects take 400 bytes each; as 24-byte records of one `bytes` a group they take about a
hundred with the index around them, and the garbage collector has nothing to walk. A record is

    tail id (32 bits) | directory id (24 bits) | mark (8 bits) | mtime in ns (64 bits) | disk bytes (64 bits)

The first seven bytes say which shard of the group it is. The mark is the number of the listing that last saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

MAX_TAILS = 4096
"""How many tails are interned for good. A deployment has a few hundred; the rest of the room is for surprises."""
MAX_DIRECTORIES = 1 << 24
MARKS = 1 << 8

_RECORD = Struct("<IIqq")
_SIZE = _RECORD.size
_IDENTITY = 7
DIRECTORY = MAX_DIRECTORIES - 1
"""Masks the directory id out of the word that it shares with the mark."""
_PRIVATE = 0x8000_0000


Row: TypeAlias = tuple[int, str, int, int, int]
"""A shard, unpacked: directory id, tail, mtime in ns, disk bytes, mark. A named tuple takes three times as long
to make."""


class Popped(NamedTuple):
    """A group, or the evictable part of one, with its shards as a `Packing` packed them."""

    key: str
    recency_ns: int
    packed: bytes


class _Named(bytes):
    """A packed group that brings some tails of its own: a record with id `_PRIVATE | i` has the tail `names[i]`."""

    names: tuple[str, ...]


class _Layouts(dict[int, Struct]):
    """One `Struct` for each length of a packed group: unpacking all records at once is four times as fast as one
    by one. Only usual sizes are kept, so that one odd group does not cost memory for ever."""

    def __init__(self, fields: str) -> None:
        self._fields = fields

    def __missing__(self, length: int) -> Struct:
        count = length // _SIZE
        layout = Struct("<" + self._fields * count)
        if count <= 64:
            self[length] = layout
        return layout


_MTIMES = _Layouts("8xq8x")
_DISK_BYTES = _Layouts("16xq")
_WEIGHT = Struct("<4xI8xq")


class Packing:
    """Packs and unpacks shards; owns the table of interned tails.

    A packed group stays readable as long as its packing lives: the id of a tail is never given to another tail. A tail
    that starts with `/` is a whole file name, one of its kind, and is never interned; nor is one that comes when
    the table is full. The group then carries such a tail itself. Costs below are for a group of s shards.
    """

    __slots__ = ("_ids", "_max_tails", "_tails")

    def __init__(self, max_tails: int = MAX_TAILS) -> None:
        self._max_tails = max_tails
        self._ids: dict[str, int] = {}
        self._tails: list[str] = []

    @staticmethod
    def count(packed: bytes) -> int:
        """How many shards. O(1)."""
        return len(packed) // _SIZE

    @staticmethod
    def newest(packed: bytes) -> int:
        """The newest mtime, in ns, of a group that is not empty. O(s)."""
        newest: int = max(_MTIMES[len(packed)].unpack(packed))
        return newest

    @staticmethod
    def sum_bytes(packed: bytes) -> int:
        """The disk bytes of all shards. O(s)."""
        return sum(_DISK_BYTES[len(packed)].unpack(packed))

    @staticmethod
    def weights(packed: bytes) -> list[tuple[int, int]]:
        """Directory id and disk bytes of each shard: what totals need, without the tails. O(s)."""
        return [(word & DIRECTORY, size) for word, size in _WEIGHT.iter_unpack(packed)]

    @staticmethod
    def words(packed: bytes) -> Iterator[tuple[int, int]]:
        """`weights` for whom 1 us matters: the directory id is `word & DIRECTORY`. O(s)."""
        return _WEIGHT.iter_unpack(packed)

    def rows(self, packed: bytes) -> list[Row]:
        """All shards, in the order in which they came. O(s)."""
        tails = self._tails
        names = packed.names if isinstance(packed, _Named) else ()
        return [
            (
                word & DIRECTORY,
                tails[number] if number < _PRIVATE else names[number - _PRIVATE],
                mtime_ns,
                disk_bytes,
                word >> 24,
            )
            for number, word, mtime_ns, disk_bytes in _RECORD.iter_unpack(packed)
        ]

    def append(
        self, packed: bytes, directory: int, tail: str, mtime_ns: int, disk_bytes: int, mark: int
    ) -> bytes | None:
        """`put` for what is most common, a new shard with an interned tail: about 0.4 us. None where it may be
        something else. O(s)."""
        number = self._ids.get(tail)
        if number is None or type(packed) is not bytes:
            return None
        record = _RECORD.pack(number, directory | mark << 24, mtime_ns, disk_bytes)
        return None if record[:_IDENTITY] in packed else packed + record

    def put(
        self, packed: bytes, directory: int, tail: str, mtime_ns: int, disk_bytes: int, mark: int
    ) -> tuple[bytes, tuple[int, int] | None]:
        """Add a shard or overwrite its record. O(s), about 0.6 us.

        Returns the new packed group and what the record said before, `(mtime_ns, disk_bytes)`, or None when the shard
        is new. A record that says the same, mark included, returns the very object that was passed. Raises
        `struct.error` where a number does not fit its field.
        """
        number = self._ids.get(tail)
        if number is None or type(packed) is not bytes:
            return self._put_named(packed, directory, tail, mtime_ns, disk_bytes, mark)
        record = _RECORD.pack(number, directory | mark << 24, mtime_ns, disk_bytes)
        at = _find(packed, record[:_IDENTITY])
        if at < 0:
            return packed + record, None
        _, _, old_mtime_ns, old_disk_bytes = _RECORD.unpack_from(packed, at)
        if not packed.startswith(record, at):
            packed = packed[:at] + record + packed[at + _SIZE :]
        return packed, (old_mtime_ns, old_disk_bytes)

    def has(self, packed: bytes, directory: int, tail: str) -> bool:
        """Whether the group has this shard. O(s)."""
        return self._at(packed, directory, tail) >= 0

    def drop(self, packed: bytes, directory: int, tail: str) -> tuple[bytes, tuple[int, int] | None]:
        """Take a shard out. O(s). Returns what is left, and `(mtime_ns, disk_bytes)` or None when it was not there."""
        at = self._at(packed, directory, tail)
        if at < 0:
            return packed, None
        _, _, mtime_ns, disk_bytes = _RECORD.unpack_from(packed, at)
        rest = packed[:at] + packed[at + _SIZE :]
        return _with_names(rest, packed), (mtime_ns, disk_bytes)

    def split(self, packed: bytes, wanted: Callable[[int], bool]) -> tuple[bytes, bytes]:
        """The shards in directories that are wanted, and the others. O(s)."""
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for at, (directory, _) in enumerate(self.weights(packed)):
            parts[not wanted(directory)].append(packed[at * _SIZE : (at + 1) * _SIZE])
        return _with_names(b"".join(parts[0]), packed), _with_names(b"".join(parts[1]), packed)

    def _at(self, packed: bytes, directory: int, tail: str) -> int:
        number = self._ids.get(tail)
        if number is None:
            if not isinstance(packed, _Named) or tail not in packed.names:
                return -1
            number = _PRIVATE | packed.names.index(tail)
        return _find(packed, _RECORD.pack(number, directory, 0, 0)[:_IDENTITY])

    def _put_named(
        self, packed: bytes, directory: int, tail: str, mtime_ns: int, disk_bytes: int, mark: int
    ) -> tuple[bytes, tuple[int, int] | None]:
        """`put` where the tail is not interned, or where the group has tails of its own."""
        names = packed.names if isinstance(packed, _Named) else ()
        # Looked up before it may be interned: a tail that is private to this group stays so, or the shard would
        # be there twice.
        if tail in names:
            number = _PRIVATE | names.index(tail)
        elif tail in self._ids or self._intern(tail):
            number = self._ids[tail]
        else:
            number = _PRIVATE | len(names)
            names = (*names, tail)
        record = _RECORD.pack(number, directory | mark << 24, mtime_ns, disk_bytes)
        at = _find(packed, record[:_IDENTITY])
        if at < 0:
            return _named(packed + record, names), None
        _, _, old_mtime_ns, old_disk_bytes = _RECORD.unpack_from(packed, at)
        if not packed.startswith(record, at):
            packed = _named(packed[:at] + record + packed[at + _SIZE :], names)
        return packed, (old_mtime_ns, old_disk_bytes)

    def _intern(self, tail: str) -> bool:
        if tail.startswith("/") or len(self._tails) >= self._max_tails:
            return False
        # The list first: whoever sees the id can also read the tail.
        self._tails.append(tail)
        self._ids[tail] = len(self._tails) - 1
        return True


def _find(packed: bytes, identity: bytes) -> int:
    """Where the record with this identity starts, or -1."""
    at = packed.find(identity)
    # The end of one record and the start of the next can look like an identity too.
    while at >= 0 and at % _SIZE:
        at = packed.find(identity, at + 1)
    return at


def _named(records: bytes, names: tuple[str, ...]) -> bytes:
    if not names:
        return records
    named = _Named(records)
    named.names = names
    return named


def _with_names(records: bytes, source: bytes) -> bytes:
    """Records cut out of `source`, with those of its private names that they still need, numbered afresh."""
    if not isinstance(source, _Named):
        return records
    numbers: dict[int, int] = {}
    parts = bytearray(records)
    for at in range(0, len(records), _SIZE):
        number, word, mtime_ns, disk_bytes = _RECORD.unpack_from(records, at)
        if number >= _PRIVATE:
            fresh = numbers.setdefault(number, _PRIVATE | len(numbers))
            _RECORD.pack_into(parts, at, fresh, word, mtime_ns, disk_bytes)
    return _named(bytes(parts), tuple(source.names[number - _PRIVATE] for number in numbers))
