"""Metrics, scraped over HTTP as Prometheus does it."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nixl_index import Cleaner, Evictor, FailedError, GroupIndex
from nixl_index import prometheus as metrics
from nixl_index.durations import BOUNDS, Durations
from nixl_index.link import Isolation
from nixl_index.prometheus import IndexCollector, MetricsServer, serve
from nixl_index.tree import Tree
from tests.provoke import held
from tests.support import DEADLINE, eventually, write, write_page

Watch = Callable[..., GroupIndex]
Samples = dict[tuple[str, ...], float]
STATES = ("scanning", "live", "degraded", "frozen", "failed", "closed")
TICK = "nixl_index_cleaner_tick_duration_seconds"


def read(text: str) -> Samples:
    """Each sample, by its name without the prefix, and the values of its labels."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (
            sample.name.removeprefix("nixl_index_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def text_of(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=DEADLINE) as response:
        assert response.status == 200
        text: str = response.read().decode()
        return text


def scrape(*observed: Any) -> Samples:
    """What a server would say, without one: each takes half a second to close."""
    return read_from(IndexCollector(*observed))


def read_from(collector: IndexCollector) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector)
    return read(generate_latest(registry).decode())


def state(samples: Samples, *name: str) -> str:
    """The one state that is told, of all that there are."""
    assert {key[-1] for key in samples if key[0] == "state"} == set(STATES)
    (told,) = [value for value in STATES if samples[("state", *name, value)]]
    return told


@pytest.fixture
def isolation() -> Isolation:
    """Where the scout runs makes no difference to what is told."""
    return "thread"


# --- what is told ---


def test_an_index_and_its_cleaner(watch: Watch, bases: list[Path]) -> None:
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    write(bases[0] / "00" / "young_m", b"x", time.time() - 100)
    write(bases[1] / "00" / "hidden.tmp")
    index.sync(DEADLINE)
    cleaner = Cleaner(index, 80, 70, capacity=index.nbytes)
    evicted = cleaner.tick()
    index.sync(DEADLINE)
    with serve(index, cleaner, port=0) as server:
        told = read(text_of(server))
    assert state(told) == "live"
    assert told[("groups",)] == len(index)
    assert told[("events_total",)] == 2 + 2 * len(evicted.evicted)
    assert told[("ignored_names_total",)] == 1
    assert told[("evicted_groups_total",)] == len(evicted.evicted) == 4
    assert told[("freed_bytes_total",)] == evicted.disk_bytes
    assert told[("cleaner_evicted_torn_groups_total",)] == 0
    assert told[("oldest_group_age_seconds",)] == pytest.approx(time.time() - 1_700_000_004, abs=DEADLINE)
    assert told[("watched_directories",)] == index.health().watched
    for base in map(str, bases):
        shards = [shard for group in index for shard in group.shards if shard.path.startswith(base)]
        assert told[("shards", base)] == len(shards)
        assert told[("disk_bytes", base)] == sum(shard.disk_bytes for shard in shards)
        assert told[("base_frozen", base)] == 0
        assert told[("usage_ratio", base)] == 1
    assert (told[("watermark_ratio", "high")], told[("watermark_ratio", "low")]) == (0.8, 0.7)
    assert (told[("cleaner_running",)], told[("cleaner_last_tick_whole",)]) == (0, 1)
    assert told[(f"{TICK.removeprefix('nixl_index_')}_count",)] == 1
    assert told[(f"{TICK.removeprefix('nixl_index_')}_bucket", "+Inf")] == 1
    for quiet in ("losses", "overflows", "reconciles", "scout_restarts", "mended_shards", "foreign_names"):
        assert told[(f"{quiet}_total",)] == 0
    for quiet in ("quarantined_groups", "unwatched_directories", "doubtful_directories", "queued_bytes", "lag_seconds"):
        assert told[(quiet,)] == 0


def test_an_evictor_counts_too_and_a_dry_run_does_not(watch: Watch, bases: list[Path]) -> None:
    for page in range(4):
        write_page(bases, page)
    index = watch(*bases)
    assert Evictor(index, dry_run=True).evict_oldest()
    assert scrape(index)[("evicted_groups_total",)] == 0
    evicted = Evictor(index).evict_oldest(2)
    told = scrape(index)
    assert (told[("evicted_groups_total",)], told[("freed_bytes_total",)]) == (2, evicted.disk_bytes)
    assert not [key for key in told if "cleaner" in key[0] or "usage" in key[0] or "watermark" in key[0]]


def test_torn_groups(watch: Watch, bases: list[Path]) -> None:
    for page in range(10):
        paths = write_page(bases, page)
        if page == 7:
            paths[0].unlink()
    index = watch(*bases)
    cleaner = Cleaner(index, 80, 70, capacity=index.nbytes, torn_after=1)
    assert cleaner.tick()
    assert scrape(index, cleaner)[("cleaner_evicted_torn_groups_total",)] == 1


def test_every_family_says_what_it_is(watch: Watch, bases: list[Path]) -> None:
    write_page(bases, 0)
    index = watch(*bases)
    cleaner = Cleaner(index)
    cleaner.tick()
    with serve(index, cleaner, port=0) as server:
        families = list(text_string_to_metric_families(text_of(server)))
    assert all(family.documentation and family.samples for family in families)
    described = {family.name for family in IndexCollector(index).describe()}
    assert {family.name for family in families} == described
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert names == {*metrics._GAUGES, *metrics._COUNTERS, TICK}


def test_a_frozen_base(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    write_page(bases, 0)
    index = watch(*bases)
    bases[0].rename(tmp_path / "away")
    eventually(lambda: index.health().frozen, "it is out of sight")
    told = scrape(index)
    assert state(told) == "frozen"
    assert (told[("base_frozen", str(bases[0]))], told[("base_frozen", str(bases[1]))]) == (1, 0)


@pytest.mark.parametrize(("name", "label"), [(b"caf\xe9", "caf\\xe9"), (b'"\n\\', '"\n\\')])
def test_any_path_is_a_label(watch: Watch, tmp_path: Path, name: bytes, label: str) -> None:
    base = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    base.mkdir()
    assert scrape(watch(base))[("shards", f"{tmp_path}/{label}")] == 0


def test_durations() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS[0], 1.0, 100.0):
        durations = durations.plus(seconds)
    assert (durations.count, durations.seconds) == (4, 101.0 + BOUNDS[0])
    assert durations.buckets == (2, 0, 0, 0, 1, 0, 0, 1)


# --- whatever the index is up to ---


def test_before_the_first_scan_is_over(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    step, go_on = Tree.step, threading.Event()

    def wait_and_step(tree: Tree) -> None:
        go_on.wait(DEADLINE)
        step(tree)

    monkeypatch.setattr(Tree, "step", wait_and_step)
    write_page(bases, 0)
    with GroupIndex.watch(*bases, isolation="thread", block=False) as index:
        told = scrape(index)
        go_on.set()
        index.wait_ready(DEADLINE)
        assert ("oldest_group_age_seconds",) in scrape(index)
    assert state(told) == "scanning"
    assert told[("groups",)] == 0
    assert ("oldest_group_age_seconds",) not in told


def test_a_scrape_does_not_wait_for_the_scout(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    with serve(index, Cleaner(index), port=0) as server:
        with held(index):
            assert state(read(text_of(server))) == "live"
        index.sync(DEADLINE)


def test_closed(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    with serve(index, Cleaner(index), port=0) as server:
        index.close()
        told = read(text_of(server))
    assert state(told) == "closed"
    assert {key[0] for key in told} == {"state"}


def test_failed(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    index._follower.fail(FailedError("out of luck"))
    told = scrape(index, Cleaner(index))
    assert state(told) == "failed"
    assert {key[0] for key in told} == {"state"}


# --- one registry ---


def test_two_indexes_in_one_registry(watch: Watch, bases: list[Path]) -> None:
    for page in range(2):
        write_page(bases[:1], page)
    one, other = watch(bases[0]), watch(bases[1])
    registry, collector = CollectorRegistry(), IndexCollector(one, Cleaner(one))
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(IndexCollector(other))
    for name in ("", "draft"):
        collector.add(other, Cleaner(other), name="draft") if name else None
        with pytest.raises(ValueError, match=f"name is {name!r}.*name of its own"):
            collector.add(other, name=name)
    told = read_from(collector)
    assert (told[("groups",)], told[("groups", "draft")]) == (2, 0)
    assert (told[("shards", str(bases[0]))], told[("shards", str(bases[1]), "draft")]) == (4, 0)
    assert told[("cleaner_tick_duration_seconds_count", "draft")] == 0
    other.close()
    told = read_from(collector)
    assert state({key: value for key, value in told.items() if "draft" not in key}) == "live"
    assert state({key: value for key, value in told.items() if "draft" in key}, "draft") == "closed"
    collector.add(again := watch(bases[1]), name="draft")
    told = read_from(collector)
    assert told[("groups", "draft")] == len(again) == 0


# --- the server ---


def test_a_silent_client_holds_nobody_up(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does it outlive the server; and none of it is worth a word on the terminal."""
    monkeypatch.setattr(metrics._Handler, "timeout", 0.2)
    server = serve(watch(*bases), port=0)
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        assert state(read(text_of(server))) == "live"
        server.close()
        assert "nixl-index-metrics" not in {thread.name for thread in threading.enumerate()}
        assert silent.recv(1) == b""
    server.close()
    assert capfd.readouterr() == ("", "")


def test_addresses(watch: Watch, bases: list[Path]) -> None:
    index = watch(*bases)
    with serve(index, port=0, address="::1") as server:
        with pytest.raises(OSError, match="in use"):
            serve(index, port=server.port, address="::1")
        with urllib.request.urlopen(f"http://[::1]:{server.port}/") as response:
            assert b"nixl_index_state" in response.read()


# --- the dependency ---


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "nixl_index.prometheus")
    with pytest.raises(ImportError, match=r"pip install 'nixl-index\[prometheus\]'"):
        importlib.import_module("nixl_index.prometheus")


def test_the_library_does_without_it() -> None:
    code = "import sys, nixl_index.sglang; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_promtool_has_nothing_to_say(watch: Watch, bases: list[Path]) -> None:
    """Not slow, but it needs Debian's package `prometheus`, which CI installs."""
    write_page(bases, 0)
    one, other = watch(bases[0]), watch(bases[1])
    collector = IndexCollector(one, Cleaner(one))
    collector.add(other, Cleaner(other), name="other")
    registry = CollectorRegistry()
    registry.register(collector)
    ran = subprocess.run(["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
