"""The first scan on standard error, where that is a terminal: a bar with `rich`, a line without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nixl_index.cli.text import age
from nixl_index.progress import OnProgress, Progress


@contextmanager
def progress_shown() -> Iterator[OnProgress | None]:
    """A callback for `GroupIndex.watch`; None where nobody would see it. With the last call, and at the end of the
    context, the terminal is as it was."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        import rich.progress
    except ImportError:
        with _as_line() as show:
            yield show
        return
    with rich.progress.Progress(
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("scanning"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.fields[text]}", markup=False),
        console=rich.console.Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, text="")

        def show_bar(progress: Progress) -> None:
            # Without an estimate nobody knows how many buckets are to come: the bar pulses.
            total = None if progress.remaining is None else progress.seconds + progress.remaining
            bar.update(task, completed=progress.seconds, total=total, text=numbers(progress))
            if progress.done:
                bar.stop()

        yield show_bar


@contextmanager
def _as_line() -> Iterator[OnProgress]:
    def put(text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield lambda progress: put("" if progress.done else line(progress))
    finally:
        put("")


def line(progress: Progress) -> str:
    """All of it in one line."""
    return f"scanning: {progress.buckets_done:,} of {progress.buckets_known:,} buckets, {numbers(progress)}"


def numbers(progress: Progress) -> str:
    """Shards, rate and remaining time."""
    told = f"{progress.shards:,} shards, {progress.rate:,.0f}/s"
    return told if progress.remaining is None else f"{told}, {age(progress.remaining)} left"
