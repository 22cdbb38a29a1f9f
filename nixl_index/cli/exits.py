"""How a command ends: what its exit code means, and what is said of wrong usage."""

from __future__ import annotations

FINE = 0
FAILED = 1
"""The command was carried out, and something failed or differs."""
USAGE = 2
"""Wrong usage, or a base dir that cannot be watched: nothing was done."""
INTERRUPTED = 130
"""Ctrl-C."""
BROKEN_PIPE = 141
"""Whoever read the output has gone, as after `| head`."""


class UsageError(Exception):
    """Nothing was done; the message says what to do instead."""
