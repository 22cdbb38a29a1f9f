"""The options that several commands have, and how they are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from nixl_index.arguments import check_seconds
from nixl_index.cli.exits import UsageError
from nixl_index.layout import Layout
from nixl_index.watermarks import Watermarks, parse_bytes

T = TypeVar("T")


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A type for argparse that lets the message of a ValueError or TypeError through."""

    def parse_or_explain(text: str) -> T:
        try:
            return parse(text)
        except (ValueError, TypeError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_or_explain


def percent(text: str) -> float:
    """A watermark, with or without a percent sign. Raises ValueError."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise ValueError(f"{text!r} is no percentage: give a number from 0 to 100")
    return value


def positive(text: str) -> int:
    """A number of things. Raises ValueError."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no number of things: give a whole number from 1")
    return int(text)


def port(text: str) -> int:
    """A TCP port; 0 is any that is free. Raises ValueError."""
    if not text.isdecimal() or int(text) > 65_535:
        raise ValueError(f"{text!r} is no port: give a number from 0 (any that is free) to 65535")
    return int(text)


def nbytes(text: str) -> int:
    """A size, such as `10GiB`. Raises ValueError."""
    return parse_bytes("the size", text)


def seconds(text: str) -> float:
    """A time span. Raises ValueError."""
    try:
        return check_seconds("the time", float(text))
    except ValueError:
        raise ValueError(f"{text!r} is no time: give seconds above 0") from None


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The base dirs, and what says which files in them are whose."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a base dir, one a disk; all disks of a server at once"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="ORG/NAME",
        help="only files of this model, named as the server knows it; give it once for each model. The files of others"
        " are neither counted nor touched then (default: the files of all models)",
    )
    parser.add_argument(
        "--layout",
        type=checked(Layout),
        default=Layout(),
        metavar="PATTERN",
        help="which directories below a base dir hold shards: a glob for each level, such as '*/[0-9a-f][0-9a-f]'"
        " with a level of tenants above, or '' for the base dir itself (default: two hex digits)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say more: all names, and the log")


def add_watermarks(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """When to evict, and down to where."""
    for name, value, what in (("high", 80.0, "evict when usage is as high"), ("low", 70.0, "evict down to this usage")):
        parser.add_argument(
            f"--{name}",
            type=checked(percent),
            required=required,
            default=None if required else value,
            metavar="PERCENT",
            help=what if required else f"the {name} watermark to show (default: {value:.0f})",
        )
    parser.add_argument(
        "--capacity",
        type=checked(nbytes),
        metavar="SIZE",
        help="usage is that of so many bytes by the shards of all base dirs, such as 512GiB, not that of the disks",
    )


def watermarks(options: argparse.Namespace) -> Watermarks:
    """Those that were given. Raises UsageError where they make no sense."""
    try:
        return Watermarks(options.high, options.low)
    except ValueError as error:
        raise UsageError(str(error)) from error
