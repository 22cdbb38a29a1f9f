"""From how full file systems are to what has to go. Pure.

Usage is `100 * (blocks - bavail) / blocks`, or the same of inodes if that is higher. At the high watermark or above it
something has to go: down to the low one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from nixl_index.budget import Deficit

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", 1):
    _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[f"{_letter}B"] = _UNITS[_letter] = 1000**_power


def parse_bytes(name: str, value: int | float | str) -> int:
    """A number of bytes, from a number or a text such as `512GiB` or `1.5 TB`. Raises ValueError or TypeError, which
    show the value."""
    number: float
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{name} is {value!r}: give bytes, or a text such as '512GiB'")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value)
        if not match or match[2].upper() not in _UNITS:
            raise ValueError(f"{name} is {value!r}: give a number and a unit such as KiB, MiB, GiB, TiB, GB or TB")
        number = float(match[1]) * _UNITS[match[2].upper()]
    else:
        number = value
    if not 1 <= number < math.inf:
        raise ValueError(f"{name} is {value!r}: give at least 1 byte")
    return int(number)


@dataclass(frozen=True, slots=True)
class Volume:
    """A file system, or the part of it that a capacity allows, with the numbers of the bases on it. Sizes in bytes."""

    bases: frozenset[int]
    size: float
    available: float
    files: float = 0
    files_available: float = 0

    @property
    def usage(self) -> float:
        """In percent, of bytes or of inodes, whichever is higher. A file system that counts no inodes has none used."""
        of_bytes = 100 * (self.size - self.available) / self.size if self.size else 0.0
        of_files = 100 * (self.files - self.files_available) / self.files if self.files else 0.0
        return max(of_bytes, of_files)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """When to start evicting, and when to stop, in percent; and how many bytes are to stay free in any case. Raises
    ValueError or TypeError for what makes no sense."""

    high: float
    low: float
    min_free: int = 0

    def __post_init__(self) -> None:
        for name in ("high", "low"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}: give a watermark in percent")
        if not 0 <= self.low < self.high <= 100:
            raise ValueError(f"high is {self.high!r} and low is {self.low!r}: they need 0 <= low < high <= 100")

    def deficit(self, volume: Volume) -> Deficit | None:
        """What a volume lacks; None where it is not hot."""
        short = self.min_free - volume.available
        if volume.usage < self.high and short <= 0:
            return None
        hot = volume.usage >= self.high
        used, files_used = volume.size - volume.available, volume.files - volume.files_available
        disk_bytes = max(used - self.low * volume.size / 100 if hot else 0.0, short)
        files = files_used - self.low * volume.files / 100 if hot and volume.files else 0.0
        return Deficit(volume.bases, disk_bytes, files)

    def room(self, volume: Volume) -> float:
        """How many bytes may still come before the volume is hot; negative where it is."""
        until_high = volume.available - (100 - self.high) * volume.size / 100
        return min(until_high, volume.available - self.min_free)
