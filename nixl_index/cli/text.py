"""Numbers, names and tables as people read them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def size(nbytes: float) -> str:
    """Bytes in binary units."""
    if abs(nbytes) < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= 1024
        if abs(nbytes) < 1024:
            return f"{nbytes:,.1f} {unit}"
    return f"{nbytes / 1024:,.1f} TiB"


def age(seconds: float) -> str:
    """A time span, in its largest unit."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds / length:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{max(0.0, seconds):.0f} s"


def count(number: int, noun: str) -> str:
    """So many of them."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(value: float | None) -> str:
    """A usage, or a question mark where it is unknown."""
    return "?" if value is None else f"{value:.1f} %"


def printable(name: str) -> str:
    """A name without what a terminal would obey, and without what cannot be encoded."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def shortened(name: str, length: int) -> str:
    """A name that fits, cut in the middle: a hash comes first, a model last."""
    name = printable(name)
    if len(name) <= length:
        return name
    tail = (length - 3) // 2
    return f"{name[: length - 3 - tail]}...{name[len(name) - tail :]}"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns: the first is flush left, the others right."""
    lines = list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) if lines else 0)]
    return [
        "  ".join(
            (cell.ljust if column == 0 else cell.rjust)(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def indented(lines: Sequence[str], total: int) -> list[str]:
    """Some of so many lines, and how many are left out."""
    rest = [f"... and {total - len(lines):,} more (-v names them)"] if len(lines) < total else []
    return [f"  {line}" for line in (*lines, *rest)]
