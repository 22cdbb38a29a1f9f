"""The live view as a screen. The one module, besides the progress bar, that needs `rich`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nixl_index.cli import text
from nixl_index.cli.top import BaseRow, View

_BAR = 28
_KEY = 60
_STATES = {"live": "bold green", "scanning": "bold cyan", "degraded": "bold yellow"}


@contextmanager
def screen() -> Iterator[Callable[[View], None]]:
    """A function that draws a view on a screen of its own; at the end the terminal is as it was."""
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        live.update(Text("nixl-index top: the first look comes in a moment", style="dim"), refresh=True)
        yield lambda view: live.update(draw(view), refresh=True)


def draw(view: View) -> RenderableType:
    """A view, as high as it needs to be."""
    return Group(_headline(view), _bases(view), _oldest(view), _health(view))


def _headline(view: View) -> Text:
    health, rates = view.health, view.rates
    return Text.assemble(
        (" nixl-index top  ", "bold"),
        f"{text.count(health.groups, 'group')}, {text.count(health.shards, 'shard')}, {text.size(view.nbytes)}\n",
        (" in   ", "dim"),
        (f"{rates.shards_in:,.0f} shards/s, {text.size(rates.bytes_in)}/s", "green"),
        ("    out  ", "dim"),
        (f"{rates.shards_out:,.0f} shards/s, {text.size(rates.bytes_out)}/s", "magenta"),
    )


def _table(*columns: str) -> Table:
    """The first column gives way where there is little room."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="dim", padding=(0, 1))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True, ratio=None if number else 1)
    return table


def _bases(view: View) -> Table:
    table = _table("base dir", "shards", "bytes", f"usage, ┿ at {view.low:g} and {view.high:g} %", "")
    for base in view.bases:
        usage = Text(base.frozen, style="red") if base.frozen else _bar(base, view)
        cells = (Text(text.printable(base.path)), f"{base.shards:,}", text.size(base.nbytes))
        table.add_row(*cells, usage, text.percent(base.usage))
    return table


def _bar(base: BaseRow, view: View) -> Text:
    """Filled as far as the usage, with a mark at each watermark."""
    usage = base.usage or 0.0
    style = "red" if usage >= view.high else "yellow" if usage >= view.low else "green"
    marks = {min(_BAR - 1, int(mark * _BAR / 100)) for mark in (view.low, view.high)}
    bar = Text()
    for cell in range(_BAR):
        filled = usage * _BAR / 100 >= cell + 0.5
        bar.append(
            "┿" if cell in marks else "━", style="bold" if cell in marks else style if filled else "bright_black"
        )
    return bar


def _oldest(view: View) -> Table:
    table = _table("next to go", "shards", "bytes", "written")
    for group in view.oldest:
        key = Text(text.shortened(group.key, _KEY))
        table.add_row(key, str(group.shards), text.size(group.nbytes), f"{text.age(group.age)} ago")
    return table


def _health(view: View) -> Text:
    health = view.health
    told = (
        f"  {health.watched:,} directories watched, {health.unwatched:,} polled; {health.losses:,} losses,"
        f" {health.reconciles:,} reconciles, {health.mended:,} mended; {health.quarantined:,} in quarantine"
    )
    line = Text.assemble(" ", (health.state, _STATES.get(health.state, "bold red")), (told, "dim"))
    if view.problem:
        line.append(f"\n {text.printable(view.problem)}", style="yellow")
    return line
