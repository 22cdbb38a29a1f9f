"""The exceptions of the library.

Bad arguments raise the built-in exception that fits (`FileNotFoundError`, `ValueError`, ...), at the call where they
were given. What can go wrong later is below; a call that ran out of time raises the built-in `TimeoutError`.
"""

__all__ = ["ClosedError", "FailedError", "ForkedError", "FrozenError", "NixlIndexError", "NotReadyError", "WireError"]


class NixlIndexError(Exception):
    """The base of the library's own exceptions."""


class NotReadyError(NixlIndexError):
    """The first scan is not over, so "the oldest" is not known yet. Call `wait_ready()` first."""


class ClosedError(NixlIndexError):
    """The index was closed."""


class FailedError(NixlIndexError):
    """The index can no longer be kept true (the message says why), so it refuses to answer."""


class ForkedError(NixlIndexError):
    """The index belongs to the parent process; a forked child has to open its own."""


class FrozenError(NixlIndexError):
    """A base dir is out of sight, or is provably not the one that was indexed; the message names it."""


class WireError(NixlIndexError):
    """A stream held something that is no record of this version of the protocol."""
