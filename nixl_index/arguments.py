"""Checks of what callers pass in: a clear error that names the argument and shows its value. Pure."""

from __future__ import annotations

import os
from time import monotonic


def left(until: float | None) -> float | None:
    """The seconds that are left until then, in seconds of `time.monotonic`."""
    return None if until is None else max(0.0, until - monotonic())


def absolute(path: str | os.PathLike[str]) -> str:
    """A base dir as an absolute path, by the present working directory. Raises TypeError or ValueError."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"base dir {path!r} is bytes: give a str or a Path")
    if not text or "\0" in text:
        raise ValueError(f"base dir {text!r} is no path")
    return os.path.abspath(text)


def check_seconds(name: str, value: float) -> float:
    """The seconds of an argument. Raises TypeError or ValueError, which name it and show its value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}: give seconds")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}: give seconds above 0")
    return float(value)
