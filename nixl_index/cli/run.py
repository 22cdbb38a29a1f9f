"""`nixl-index run`: index and cleaner as a daemon."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, NoReturn

from nixl_index.cleaner import Cleaner
from nixl_index.cli import text
from nixl_index.cli.exits import FAILED, UsageError
from nixl_index.cli.opening import doubt_of_bases, opened, say_if_empty
from nixl_index.cli.options import add_watermarks, checked, port, watermarks
from nixl_index.index import GroupIndex
from nixl_index.results import EvictedGroup, Eviction

HELP = "keep the disks below a watermark, until it is told to stop"
DESCRIPTION = """\
Follow the base dirs, and evict the oldest groups as soon as a disk is used --high
percent or more, down to --low. SIGTERM or Ctrl-C ends it, with exit code 0. It logs
to standard error: a line for each time that it evicted, and what goes wrong.

It does not ask: --high and --low have no defaults, and --dry-run shows what it would
do. It never unlinks anything but regular files in directories of the layout, whole
groups, and never more than what a disk has above --low. Of several processes that
evict, one at a time does in a base dir."""
EXAMPLE = """\
example:
  nixl-index run /mnt/disk0/l3 /mnt/disk1/l3 --high 80 --low 70 --metrics-port 9178

As a service: see examples/nixl-index.service of the source.

exit code 1: the index can no longer be kept true (the log says why); start it again."""

logger = logging.getLogger("nixl_index.run")


class LoggingCleaner(Cleaner):
    """A cleaner that says what came of a tick."""

    def tick(self) -> Eviction:
        """One round; a line where it did something."""
        begun = time.monotonic()
        eviction = super().tick()
        if eviction or eviction.skipped or eviction.failed:
            usage = ", ".join(f"{text.printable(path)} {used:.1f} %" for path, used in self.health().usage.items())
            logger.info(
                "%s %s, %s in %.1f s; %d skipped, %d failed; usage before: %s",
                "would evict" if self._dry_run else "evicted",
                text.count(len(eviction.evicted), "group"),
                text.size(sum(group.disk_bytes for group in eviction.evicted)),
                time.monotonic() - begun,
                *(len(eviction.skipped), len(eviction.failed), usage),
            )
        return eviction


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    add_watermarks(parser, required=True)
    parser.add_argument("--dry-run", action="store_true", help="only log what would be evicted")
    parser.add_argument(
        "--metrics-port", type=checked(port), metavar="N", help="serve metrics for Prometheus on this port of 127.0.0.1"
    )
    parser.set_defaults(log_level=logging.INFO, log_format="%(asctime)s %(levelname)s %(message)s")


def run(options: argparse.Namespace) -> int:
    """The command."""
    marks = watermarks(options)
    serve = _metrics_server() if options.metrics_port is not None else None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    with opened(options, block=False) as index:
        cleaner = LoggingCleaner(
            index,
            *(marks.high, marks.low),
            capacity=options.capacity,
            on_evict=_name if options.verbose else None,
            dry_run=options.dry_run,
        )
        with _serving(serve, index, cleaner, options.metrics_port):
            logger.info("scanning %s", ", ".join(map(text.printable, options.paths)))
            index.wait_ready()
            say_if_empty(index, options.layout)
            logger.info(
                "following %s, %s, %s; evicting at %g %% down to %g %%",
                *(text.count(len(index), "group"), text.count(index.shards, "shard"), text.size(index.nbytes)),
                *(marks.high, marks.low),
            )
            if doubt := doubt_of_bases(index):
                logger.warning(doubt)
            with cleaner:
                while cleaner.health().running:
                    time.sleep(1.0)
        logger.error("the index is %s: %s", index.health().state, index.health().last_error)
        return FAILED


def _name(group: EvictedGroup) -> None:
    logger.info("evicted %s", text.printable(group.key))


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End in order, and not again while that goes on."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    logger.info("%s: stopping", signal.Signals(number).name)
    sys.exit(0)


def _metrics_server() -> Any:
    try:
        return importlib.import_module("nixl_index.prometheus").serve
    except ImportError as error:
        raise UsageError("--metrics-port needs prometheus_client: pip install 'nixl-index[prometheus]'") from error


@contextmanager
def _serving(serve: Any, index: GroupIndex, cleaner: Cleaner, number: int) -> Iterator[None]:
    if serve is None:
        yield
        return
    try:
        server = serve(index, cleaner, port=number)
    except OSError as error:
        raise UsageError(f"metrics cannot be served on port {number}: {error.strerror}") from error
    with closing(server):
        logger.info("metrics: http://127.0.0.1:%d/metrics", server.port)
        yield
