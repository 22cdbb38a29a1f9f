"""What callers are handed: groups and their shards, as they were at one moment. Pure: no lock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nixl_index.packed import Packing


class Shard(NamedTuple):
    """One regular file of a group. Times are in ns since the epoch, sizes in bytes."""

    path: str
    """Absolute."""
    base: str
    """The base dir that it lies under."""
    mtime_ns: int
    disk_bytes: int

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.rpartition("/")[2]


class Place(NamedTuple):
    """A bucket as the index knows it."""

    base: int
    """The number of its base."""
    base_path: str
    path: str
    """The absolute path of the directory."""
    prefix: str
    """What is put before the key that the scheme finds in a name: nothing, or the levels above, as `tenant/`."""

    def name_of(self, key: str, tail: str) -> str:
        """The name of a file in here, from its group key and its tail."""
        return tail[1:] if tail.startswith("/") else key[len(self.prefix) :] + tail


class Group:
    """One logical entry with all its shards: an immutable snapshot that later changes of the index leave alone.

    It is made for every pop, so it only takes hold of the packed shards, and unpacks them when somebody asks. Equal
    when key, recency and shards are; can be pickled. No member blocks; with s shards the first use of `shards` is
    O(s log s).
    """

    __slots__ = ("_key", "_packed", "_packing", "_places", "_recency_ns", "_shards")

    _shards: tuple[Shard, ...] | None

    def __init__(self, key: str, recency_ns: int, packed: bytes, places: Sequence[Place], packing: Packing) -> None:
        """`places` is indexed by directory id and may grow afterwards, but what it holds must stay."""
        self._key = key
        self._recency_ns = recency_ns
        self._packed = packed
        self._places = places
        self._packing = packing
        self._shards = None

    @classmethod
    def of(cls, key: str, recency_ns: int, shards: Sequence[Shard]) -> Group:
        """A group from shards that are unpacked already, as after unpickling. It knows no directory ids. O(s log s)."""
        group = cls(key, recency_ns, b"", (), Packing())
        group._shards = tuple(sorted(shards))
        return group

    @property
    def key(self) -> str:
        """The group key."""
        return self._key

    @property
    def recency_ns(self) -> int:
        """The newest mtime of the shards, or a later touch, in ns. Groups are evicted in this order."""
        return self._recency_ns

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, sorted by path."""
        if self._shards is None:
            self._shards = tuple(sorted(self._unpacked()))
        return self._shards

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute path of each shard, sorted."""
        return tuple(shard.path for shard in self.shards)

    @property
    def disk_bytes(self) -> int:
        """What all shards take on disk, in bytes. O(s)."""
        if self._packed:
            return self._packing.sum_bytes(self._packed)
        return sum(shard.disk_bytes for shard in self.shards)

    @property
    def mtime_ns(self) -> int:
        """The newest mtime of the shards, in ns. O(s)."""
        if self._packed:
            return self._packing.newest(self._packed)
        return max(shard.mtime_ns for shard in self.shards)

    @property
    def packed(self) -> bytes:
        """The shards as the index packed them; empty after unpickling."""
        return self._packed

    def comes_from(self, packing: Packing) -> bool:
        """Was the group handed out by the index that has this packing?"""
        return bool(self._packed) and self._packing is packing

    @property
    def rows(self) -> list[tuple[int, str, int, int]]:
        """Directory id, file name, mtime in ns and disk bytes of each shard, unsorted. O(s). Raises ValueError on an
        unpickled group: the ids mean nothing outside the index that gave them."""
        if not self._packed:
            raise ValueError(f"{self!r} does not come from an index: it has no directory ids")
        return [
            (directory, self._places[directory].name_of(self._key, tail), mtime_ns, disk_bytes)
            for directory, tail, mtime_ns, disk_bytes, _ in self._packing.rows(self._packed)
        ]

    def _unpacked(self) -> list[Shard]:
        shards = []
        for directory, name, mtime_ns, disk_bytes in self.rows:
            place = self._places[directory]
            shards.append(Shard(f"{place.path}/{name}", place.base_path, mtime_ns, disk_bytes))
        return shards

    def __len__(self) -> int:
        """How many shards."""
        return self._packing.count(self._packed) if self._packed else len(self.shards)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return (
            self._key == other._key
            and self._recency_ns == other._recency_ns
            and len(self) == len(other)
            and self.shards == other.shards
        )

    def __hash__(self) -> int:
        return hash((self._key, self._recency_ns, self.shards))

    def __reduce__(self) -> tuple[Any, ...]:
        return Group.of, (self._key, self._recency_ns, self.shards)

    def __repr__(self) -> str:
        key = self._key if len(self._key) <= 24 else f"{self._key[:16]}...{self._key[-5:]}"
        return f"<Group {key!r}: {len(self)} shards, recency_ns={self._recency_ns}>"
