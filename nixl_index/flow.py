"""How much comes and goes. No lock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nixl_index.totals import Totals

Apply = Callable[[Any], None]


class Flow:
    """Counts shards and disk bytes that came and that went, as the stream told them, the first scan included. Written
    by the observer's thread alone; what evictions of this very process take out of the index is not counted."""

    def __init__(self, totals: Totals) -> None:
        self.shards_in = self.bytes_in = self.shards_out = self.bytes_out = 0
        self._totals = totals

    def counted(self, apply: Apply) -> Apply:
        """A handler of records that add shards, or of records that remove some: by what the totals are afterwards."""

        def apply_and_count(record: Any) -> None:
            shards, nbytes = self._totals.count, self._totals.size
            apply(record)
            shards, nbytes = self._totals.count - shards, self._totals.size - nbytes
            self.shards_in += max(0, shards)
            self.bytes_in += max(0, nbytes)
            self.shards_out += max(0, -shards)
            self.bytes_out += max(0, -nbytes)

        return apply_and_count
