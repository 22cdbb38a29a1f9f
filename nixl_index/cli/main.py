"""The command line: its parser, and how a command's end becomes an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from nixl_index import NixlIndexError, __version__
from nixl_index.cli import audit, evict, run, stats, top
from nixl_index.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE, UsageError
from nixl_index.cli.options import add_common_options
from nixl_index.cli.text import printable

DESCRIPTION = """\
Look at the KV-cache files that LLM servers spill to disk through NIXL, and evict
the oldest. PATH is a base dir: what the server was given as its storage directory.
Files lie in PATH/<2 hex digits>/ (see --layout); all files of one cache entry are
a group, and go together.

Only `evict` and `run` ever remove anything: regular files in the directories of
the layout, whole groups, the oldest first."""
EPILOG = """\
`nixl-index COMMAND --help` says what a command does, and what it will never do.

exit codes: 0 fine; 1 done, but something failed or differs; 2 wrong usage, or a
base dir that cannot be watched; 130 after Ctrl-C."""
COMMANDS = {"stats": stats, "top": top, "evict": evict, "audit": audit, "run": run}


def make_parser() -> argparse.ArgumentParser:
    """The parser; what it parses has `run`, the command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("nixl-index", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"nixl-index {__version__}", help="print it")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name, help=command.HELP, description=command.DESCRIPTION, epilog=command.EXAMPLE, formatter_class=raw
        )
        add_common_options(sub)
        sub.set_defaults(run=command.run, log_level=logging.WARNING, log_format="%(levelname)s %(message)s")
        command.add_options(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code. Raises SystemExit for wrong usage and `--help`."""
    _complete_streams()
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with open(
            os.devnull, "w"
        ) as nowhere:  # else the interpreter's own flush at its end fails once more, and says so
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # behind the `^C` that the terminal shows
        return INTERRUPTED
    except UsageError as error:
        return _explained(error, USAGE)
    except (NixlIndexError, OSError) as error:
        return _explained(error, FAILED)


def _complete_streams() -> None:
    """Have all three, and have them take any name. A service may be started without some, and what is opened next would
    get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(argv: Sequence[str] | None) -> int:
    options = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO if options.verbose else options.log_level, format=options.log_format)
    code: int = options.run(options)
    return code


def _explained(error: Exception, code: int) -> int:
    print(f"nixl-index: {printable(str(error))}", file=sys.stderr)
    return code
