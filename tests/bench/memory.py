"""What processes take of the memory, in bytes, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def resident(pid: int | str = "self") -> int:
    """Its pages in memory, those of shared libraries too."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def peak(pid: int | str = "self") -> int:
    """The most that `resident` has been."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def private(pid: int | str = "self") -> int:
    """Its pages in memory that no other process has."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    return _field(rollup, "Private_Clean") + _field(rollup, "Private_Dirty")


def _field(path: Path, name: str) -> int:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{path} has no {name}")
