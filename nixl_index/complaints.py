"""What keeps a cleaner from its work, said once until it is over."""

from __future__ import annotations

import logging
import os

from nixl_index.budget import Deficit
from nixl_index.follower import Follower
from nixl_index.watermarks import Volume

logger = logging.getLogger(__name__)


class Complaints:
    """Of one tick after the other. What the tick could not do for its caller is a problem too, of `health()`."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def usage(self, number: int, unknown: str, problems: list[str]) -> None:
        """It is unknown how full the file system of this base is, unless `unknown` is empty."""
        path = self._follower.bases[number].path
        self._problem("usage_unknown", unknown and f"the usage of {path!r} is unknown: {unknown}", path, problems)

    def lock(self, number: int, refusal: str, problems: list[str]) -> None:
        """Another process evicts from this base, unless `refusal` is empty."""
        path = self._follower.bases[number].path
        self._problem("locked_out", refusal and f"nothing is evicted from {path!r}: {refusal}", path, problems)

    def hopeless(self, volumes: list[Volume], deficits: list[Deficit | None]) -> list[Deficit | None]:
        """Other people's data may fill a volume so far that an empty cache would not reach the low watermark. Returns
        the deficits of which that is not so."""
        totals, texts = self._follower.order.totals, []
        for volume, deficit in zip(volumes, deficits, strict=True):
            files, own = totals.on(volume.bases)
            texts.append(
                f"even an empty cache in {self._paths(volume)!r} would not reach the low watermark: {_amount(deficit)}"
                f" have to go, and the cache has {own} and {files}; the rest is other data"
                if deficit and (own < deficit.disk_bytes or files < deficit.files)
                else ""
            )
        self._say_all("hopeless", volumes, texts)
        return [None if text else deficit for text, deficit in zip(texts, deficits, strict=True)]

    def short(self, volumes: list[Volume], deficits: list[Deficit | None]) -> None:
        """A tick is over, and this is left of what it should have freed."""
        texts = [
            f"the low watermark of {self._paths(volume)!r} was not reached: {_amount(deficit)} are still to go, and"
            " what is left is pinned, in quarantine or on a frozen base, or was just rewritten"
            if deficit and deficit.open
            else ""
            for volume, deficit in zip(volumes, deficits, strict=True)
        ]
        self._say_all("short", volumes, texts)

    def _say_all(self, event: str, volumes: list[Volume], texts: list[str]) -> None:
        by_base: dict[str, str] = {}  # a capacity and a file system may have the same bases
        for volume, text in zip(volumes, texts, strict=True):
            base = self._paths(volume)
            by_base[base] = by_base.get(base) or text
        for base, text in by_base.items():
            self._say(event, text, base)

    def _problem(self, event: str, text: str, base: str, problems: list[str]) -> None:
        problems += [text] if text else []
        self._say(event, text, base)

    def _say(self, event: str, text: str, base: str) -> None:
        log = self._follower.log
        if text:
            log.say(logger, event, text, base=base, lasts=True)
        else:
            log.over(event, base)

    def _paths(self, volume: Volume) -> str:
        return os.pathsep.join(self._follower.bases[number].path for number in sorted(volume.bases))


def _amount(deficit: Deficit) -> str:
    return f"{max(0, int(deficit.disk_bytes))} bytes and {max(0, int(deficit.files))} inodes"
