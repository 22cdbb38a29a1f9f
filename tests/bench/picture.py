"""The picture for README: `python -m tests.bench.picture FILE.json OUT.svg` draws the seconds of one eviction against
the number of shards, log-log. The colours can be read on light and on dark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tests.bench.rows import Result, read_json, short

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 190, 44, 62
_LABEL = 18
"""The least between two labels, one below the other."""
_INK, _GRID = "#7d8590", "#7d859040"
_COLOURS = {"nixl_index": "#2f9e6e", "rescan": "#d9822b", "SGLang's cleaner": "#d6455d"}

Points = list[tuple[int, float]]
"""Shards and seconds."""


def curves(results: Sequence[Result]) -> dict[str, Points]:
    """Who evicts, and how long it takes on each size of tree."""
    found: dict[str, Points] = {}
    for row in results:
        if row.name.startswith("evict.quiet.") and row.name.endswith((".rescan", ".peer")) and row.baseline:
            shards = int(row.name.split(".")[2])
            theirs = "rescan" if row.name.endswith(".rescan") else "SGLang's cleaner"
            found.setdefault(theirs, []).append((shards, row.baseline))
            if theirs == "rescan":
                found.setdefault("nixl_index", []).append((shards, row.value))
    return found


class Axis(NamedTuple):
    """Whole decades, drawn between two places."""

    first: int
    last: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """The decades that hold these values."""
        first = floor(log10(min(values)))
        return cls(first, max(first + 1, ceil(log10(max(values)))), start, end)

    def at(self, value: float) -> float:
        """Where a value is drawn."""
        return self.start + (log10(value) - self.first) / (self.last - self.first) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """A value a decade."""
        return [10.0**power for power in range(self.first, self.last + 1)]


def draw(by_name: dict[str, Points]) -> Element:
    """The picture. Raises ValueError where there is nothing to draw."""
    points = [point for some in by_name.values() for point in some]
    if not points:
        raise ValueError("no row of `evict` is in this file: run python -m tests.bench --only evict --json FILE")
    x = Axis.over([shards for shards, _ in points], _LEFT, _WIDTH - _RIGHT)
    y = Axis.over([seconds for _, seconds in points], _HEIGHT - _BOTTOM, _TOP)
    picture = Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", width=str(_WIDTH), role="img"
    )
    picture.set("font-family", "system-ui, sans-serif")
    picture.set("font-size", "13")
    SubElement(picture, "title").text = "Seconds of one eviction of 50 groups against the number of shards"
    _axes(picture, x, y)
    lowest = 0.0
    for name, some in sorted(by_name.items(), key=lambda curve: y.at(curve[1][-1][1])):
        _curve(picture, x, y, some, _COLOURS[name])
        shards, seconds = some[-1]
        lowest = max(y.at(seconds) + 4, lowest + _LABEL)
        _text(picture, x.at(shards) + 12, lowest, f"{name}, {_seconds(seconds)}", "start", _COLOURS[name])
    return picture


def _axes(picture: Element, x: Axis, y: Axis) -> None:
    for shards in x.ticks:
        _line(picture, x.at(shards), y.start, x.at(shards), y.end)
        _text(picture, x.at(shards), y.start + 20, f"{shards:,.0f}", "middle")
    for seconds in y.ticks:
        _line(picture, x.start, y.at(seconds), x.end, y.at(seconds))
        _text(picture, x.start - 10, y.at(seconds) + 4, _seconds(seconds), "end")
    _text(picture, (x.start + x.end) / 2, _HEIGHT - 16, "shards in the tree", "middle")
    _text(picture, x.start, 22, "time to evict the 50 oldest groups (400 shards), quiet host", "start")


def _curve(picture: Element, x: Axis, y: Axis, points: Points, colour: str) -> None:
    places = [(x.at(shards), y.at(seconds)) for shards, seconds in points]
    joined = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    SubElement(picture, "polyline", {"points": joined, "fill": "none", "stroke": colour, "stroke-width": "2.5"})
    for left, top in places:
        SubElement(picture, "circle", cx=f"{left:.1f}", cy=f"{top:.1f}", r="4", fill=colour)


def _line(picture: Element, x1: float, y1: float, x2: float, y2: float) -> None:
    places = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    SubElement(picture, "line", {name: f"{place:.1f}" for name, place in places.items()}, stroke=_GRID)


def _text(picture: Element, x: float, y: float, text: str, anchor: str, colour: str = _INK) -> None:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": colour}
    SubElement(picture, "text", attributes).text = text


def _seconds(seconds: float) -> str:
    return f"{short(seconds)} s" if seconds >= 1 else f"{short(seconds * 1e3)} ms"


def main() -> None:
    """Draw the file that the command line names first into the one that it names second."""
    source, target = sys.argv[1:]
    _, results = read_json(source)
    picture = draw(curves(results))
    ElementTree.indent(picture)
    ElementTree.ElementTree(picture).write(target, encoding="unicode")


if __name__ == "__main__":
    main()
