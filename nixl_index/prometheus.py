"""Metrics for Prometheus: what `health()` says, read at scrape time. Needs `pip install 'nixl-index[prometheus]'`.

    from nixl_index.prometheus import serve

    with GroupIndex.watch("/mnt/disk0/l3") as index, Cleaner(index) as cleaner, serve(index, cleaner, port=9464):
        ...

A server that has a registry of its own registers an `IndexCollector` there instead. Nothing runs between two scrapes,
and a scrape does no file-system call, takes no time that grows with the shards, and holds the index's lock for one
look at the oldest group.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from socket import AF_INET6
from socketserver import ThreadingMixIn
from time import time_ns
from typing import NamedTuple, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from nixl_index.cleaner import Cleaner
from nixl_index.durations import BOUNDS, Durations
from nixl_index.errors import NixlIndexError
from nixl_index.health import Health, State
from nixl_index.index import GroupIndex

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "nixl_index.prometheus needs prometheus_client: pip install 'nixl-index[prometheus]'", name=error.name
    ) from error

__all__ = ["IndexCollector", "MetricsServer", "serve"]

_REQUEST_SECONDS = 5.0
"""A client that sends nothing for so long is let go: `close` waits for those that are connected."""

_GAUGES = {
    "nixl_index_state": ("1 for the state that the index is in, 0 for the others.", "state"),
    "nixl_index_groups": ("Groups in the index.", ""),
    "nixl_index_shards": ("Shards in the index.", "base"),
    "nixl_index_disk_bytes": ("Disk bytes of the shards in the index.", "base"),
    "nixl_index_base_frozen": ("1 for a base dir of which nothing is evicted: it is out of sight.", "base"),
    "nixl_index_usage_ratio": ("How full the file system, or the capacity, was at the last tick.", "base"),
    "nixl_index_watermark_ratio": ("The usage from which on, and down to which, the cleaner evicts.", "watermark"),
    "nixl_index_oldest_group_age_seconds": ("Since the oldest group that can be evicted was written or touched.", ""),
    "nixl_index_quarantined_groups": ("Groups that could not be unlinked and wait to be tried again.", ""),
    "nixl_index_watched_directories": ("Directories with a watch.", ""),
    "nixl_index_unwatched_directories": ("Directories that cannot be watched, and are listed on a timer.", ""),
    "nixl_index_doubtful_directories": ("Directories of which an error hides something; they are listed again.", ""),
    "nixl_index_queued_bytes": ("What of the scout's stream waits for the index.", ""),
    "nixl_index_lag_seconds": ("For how long the oldest part of the scout's stream has waited for the index.", ""),
    "nixl_index_cleaner_running": ("1 while the cleaner's thread runs.", ""),
    "nixl_index_cleaner_last_tick_whole": ("0 where the cleaner's last tick did less than it should have.", ""),
}
_COUNTERS = {
    "nixl_index_events_total": "Sightings of names that an event told of.",
    "nixl_index_losses_total": "How often events were lost, for whatever reason.",
    "nixl_index_overflows_total": "How often events were lost because the inotify queue was full.",
    "nixl_index_reconciles_total": "How often everything was listed again.",
    "nixl_index_scout_restarts_total": "How often the scout was replaced.",
    "nixl_index_mended_shards_total": "Shards that a listing found other than they were known, and no event told of.",
    "nixl_index_lookup_errors_total": "Look-ups that failed with an error that proves nothing.",
    "nixl_index_ignored_names_total": "Sightings of names that are no shard's.",
    "nixl_index_foreign_names_total": "Sightings of names of other models.",
    "nixl_index_evicted_groups_total": "Groups that were evicted, whoever asked for it.",
    "nixl_index_freed_bytes_total": "Disk bytes that evictions freed.",
    "nixl_index_cleaner_evicted_torn_groups_total": "Groups that the cleaner evicted first since they lack a rank.",
}
_TICKS = "nixl_index_cleaner_tick_duration_seconds"


class IndexCollector(Collector):
    """A collector for a registry of prometheus_client. All metrics are named `nixl_index_...`.

    A registry takes one: `add` more indexes to it, each with a `name`, which its samples carry as the label `index`.
    Once an index has failed or is closed, nothing but `nixl_index_state` is told of it.
    """

    def __init__(self, index: GroupIndex, cleaner: Cleaner | None = None, *, name: str = "") -> None:
        self._observed: dict[str, tuple[GroupIndex, Cleaner | None]] = {}
        self.add(index, cleaner, name=name)

    def add(self, index: GroupIndex, cleaner: Cleaner | None = None, *, name: str) -> None:
        """Tell of one more index, in place of a closed one of this name if there is one. Raises ValueError where the
        name is taken."""
        if name in self._observed and self._observed[name][0].health().state != "closed":
            raise ValueError(f"name is {name!r}, as that of another open index: give each a name of its own")
        self._observed[name] = (index, cleaner)

    def describe(self) -> Iterable[Metric]:
        """The families, without samples."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """The families, with all samples as of now. O(log n + bases) for each index. Does not raise."""
        families = _families()
        for name, (index, cleaner) in list(self._observed.items()):
            own = [name] if name else []
            for family, labels, value in _read(index, cleaner):
                metric = families[family]
                if isinstance(value, Durations):
                    assert isinstance(metric, HistogramMetricFamily)
                    metric.add_metric([*labels, *own], _buckets(value), value.seconds)
                else:
                    assert isinstance(metric, (GaugeMetricFamily, CounterMetricFamily))
                    metric.add_metric([*labels, *own], value)
        return families.values()


class _Reading(NamedTuple):
    family: str
    labels: list[str]
    value: float | Durations


def _families() -> dict[str, Metric]:
    # `index` comes last, so that a sample without it has one label less.
    families: dict[str, Metric] = {
        name: GaugeMetricFamily(name, text, labels=[*filter(None, [label]), "index"])
        for name, (text, label) in _GAUGES.items()
    }
    for name, text in _COUNTERS.items():
        families[name] = CounterMetricFamily(name, text, labels=["index"])
    families[_TICKS] = HistogramMetricFamily(_TICKS, "How long the ticks of the cleaner took.", labels=["index"])
    return families


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    return list(zip([*map(str, BOUNDS), "+Inf"], accumulate(durations.buckets), strict=True))


def _read(index: GroupIndex, cleaner: Cleaner | None) -> Iterator[_Reading]:
    health = index.health()
    for state in get_args(State):
        yield _Reading("nixl_index_state", [state], state == health.state)
    if health.state in ("failed", "closed"):
        return
    for name, value in _plain(health).items():
        yield _Reading(f"nixl_index_{name}", [], value)
    with suppress(NixlIndexError):  # not ready yet, or closed meanwhile
        oldest = index.oldest()
        if oldest:
            age_ns = max(0, time_ns() - oldest.recency_ns)
            yield _Reading("nixl_index_oldest_group_age_seconds", [], age_ns / 1e9)
    totals = index._follower.order.totals
    for number, base in enumerate(index._follower.bases):
        labels, (shards, nbytes) = [_printable(base.path)], totals.on((number,))
        yield _Reading("nixl_index_shards", labels, shards)
        yield _Reading("nixl_index_disk_bytes", labels, nbytes)
        yield _Reading("nixl_index_base_frozen", labels, bool(base.frozen))
    if cleaner:
        yield from _read_cleaner(cleaner)


def _plain(health: Health) -> dict[str, float]:
    """What is one number, by the name of its metric."""
    return {
        "groups": health.groups,
        "quarantined_groups": health.quarantined,
        "watched_directories": health.watched,
        "unwatched_directories": health.unwatched,
        "doubtful_directories": health.doubtful,
        "queued_bytes": health.queued_bytes,
        "lag_seconds": health.oldest_unhandled,
        "events_total": health.events,
        "losses_total": health.losses,
        "overflows_total": health.overflows,
        "reconciles_total": health.reconciles,
        "scout_restarts_total": health.scout_restarts,
        "mended_shards_total": health.mended,
        "lookup_errors_total": health.errors,
        "ignored_names_total": health.ignored,
        "foreign_names_total": health.foreign,
        "evicted_groups_total": health.evicted_groups,
        "freed_bytes_total": health.freed_bytes,
    }


def _read_cleaner(cleaner: Cleaner) -> Iterator[_Reading]:
    health, watermarks = cleaner.health(), cleaner._watermarks
    yield _Reading("nixl_index_cleaner_running", [], health.running)
    yield _Reading("nixl_index_cleaner_last_tick_whole", [], not health.last_error)
    yield _Reading("nixl_index_cleaner_evicted_torn_groups_total", [], health.evicted_torn_groups)
    yield _Reading(_TICKS, [], health.tick_durations)
    for path, percent in health.usage.items():
        yield _Reading("nixl_index_usage_ratio", [_printable(path)], percent / 100)
    for name, percent in (("high", watermarks.high), ("low", watermarks.low)):
        yield _Reading("nixl_index_watermark_ratio", [name], percent / 100)


def _printable(path: str) -> str:
    """A label is UTF-8; a path may hold other bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


class MetricsServer:
    """An HTTP server for Prometheus to scrape, made by `serve`; a context manager that closes itself."""

    def __init__(self, server: WSGIServer) -> None:
        """Use `serve`."""
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="nixl-index-metrics", daemon=True)
        self._thread.start()
        self.port = server.server_port

    def close(self) -> None:
        """Stop serving, and end the threads. Blocks for a scrape that is under way, 5 s for a client that is silent.
        Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def serve(index: GroupIndex, cleaner: Cleaner | None = None, *, port: int, address: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of an index, and of nothing else, over HTTP, at any path, on a thread. With `port=0` a free one
    is taken; `port` of what is returned tells which. Raises OSError where that cannot be listened to."""
    registry = CollectorRegistry()
    registry.register(IndexCollector(index, cleaner))
    server_class = _Server6 if ":" in address else _Server
    return MetricsServer(make_server(address, port, make_wsgi_app(registry), server_class, _Handler))


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, so that a client that hangs holds nobody up; none outlives `server_close`."""


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def handle(self) -> None:
        """One request; a client that is silent or gone is no error of ours."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name of it
        """Nothing: a scrape every few seconds is no news."""
