"""Which bases may be touched: a base that is out of sight, or is not provably the one that was indexed, is frozen.
Used by the scout alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import monotonic

from nixl_index.disk import Base, Directory, identity_of
from nixl_index.looks import Errors, Tell
from nixl_index.mounts import remote_kind


class Guard:
    """Watches over the bases. `on_back` is called when one may be touched again, and has to be listed."""

    def __init__(
        self, tell: Tell, touching: Callable[[Base], None], errors: Errors, on_back: Callable[[Base], None]
    ) -> None:
        self.bases: list[Base] = []
        self._tell = tell
        self._touching = touching
        self._errors = errors
        self._on_back = on_back

    def add(self, base: Base) -> None:
        """Watch over one more base."""
        self.bases.append(base)
        if not base.frozen:
            self._find_kind(base)
        self._tell(base.state())

    def check(self, base: Base) -> bool:
        """Is the base the directory that was indexed? Freezes it where not, resumes it where it is back."""
        if monotonic() < base.not_before:
            return False
        self._touching(base)
        known = base.root.identity
        identity, reason = base.glance()
        if reason:
            self.freeze(base, reason)
        elif base.frozen or identity != known:
            base.frozen, base.root.identity = "", identity
            self._find_kind(base)
            self._tell(base.state())
            self._on_back(base)
        return not base.frozen

    def freeze(self, base: Base, reason: str) -> None:
        """From now on nothing of this base is dropped, listed or unlinked."""
        if base.frozen != reason:
            base.frozen = reason
            self._tell(base.state())

    def freeze_mounted_over(self, directory: Directory) -> None:
        """Another file system is mounted at a directory below its base, which stays frozen for as long."""
        directory.base.culprit = directory
        self.freeze(directory.base, f"another file system is mounted at {os.fsdecode(directory.path)!r}")

    def freeze_failing(self, base: Base, code: int) -> None:
        """The file system does not take unlinks; `code` is an errno."""
        base.suspend(code)
        self.freeze(base, f"an unlink failed: {os.strerror(code)}")

    def changed(self) -> Iterator[Directory]:
        """Directories of live bases that are not the ones that were indexed: something was mounted or unmounted."""
        for base in self.bases:
            directories = [] if base.frozen else list(base.root.tree())
            for directory in directories:
                try:
                    is_below = not directory.parent or directory.parent.identity
                    if is_below and identity_of(directory.path) != directory.identity:
                        yield directory
                except OSError as error:
                    self._errors.add(error, directory)

    def _find_kind(self, base: Base) -> None:
        try:
            base.remote = remote_kind(base.path)
        except OSError as error:
            self._errors.add(error)
