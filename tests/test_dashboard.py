"""The Grafana dashboard shows what is really told, all of it."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nixl_index import Cleaner, GroupIndex
from nixl_index.prometheus import IndexCollector
from tests.support import write_page

DASHBOARD = json.loads((Path(__file__).parents[1] / "examples" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [target["expr"] for _, target in TARGETS]


@pytest.fixture
def told(bases: list[Path]) -> dict[str, set[str]]:
    """The labels of each sample that is scraped, with those that Prometheus adds."""
    write_page(bases, 0)
    with GroupIndex.watch(*bases, isolation="thread") as index:
        cleaner = Cleaner(index)
        cleaner.tick()
        registry = CollectorRegistry()
        registry.register(IndexCollector(index, cleaner, name="draft"))
        families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = itertools.chain.from_iterable(family.samples for family in families)
    return {sample.name: {*sample.labels, "instance", "job"} for sample in samples}


def test_every_metric_is_told_and_every_metric_is_shown(told: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"nixl_index_\w+", " ".join(EXPRESSIONS)))
    assert shown == told.keys()


def test_every_label_is_told(told: dict[str, set[str]]) -> None:
    for title, target in TARGETS:
        expression = target["expr"]
        labels = set.intersection(*(told[name] for name in re.findall(r"nixl_index_\w+", expression)))
        used = re.findall(r"[{,]\s*(\w+)\s*[=!]", expression) + re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used += group.split(", ")
        assert "instance" in used, title
        assert set(used) <= labels, title


def test_the_data_source_is_a_variable() -> None:
    variable, instance = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    wanted = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    assert instance["datasource"] == wanted
    assert instance["name"] == "instance"
    assert all(panel["datasource"] == wanted for panel in PANELS)
    assert all(target["datasource"] == wanted for _, target in TARGETS)


def test_the_panels_lie_side_by_side() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.slow
def test_promtool_understands_every_expression(tmp_path: Path) -> None:
    """Not slow, but it needs Debian's package `prometheus`, which CI installs."""
    texts = [text.replace("$__rate_interval", "1m").replace("$instance", ".*") for text in EXPRESSIONS]
    rules = [{"record": f"rule{number}", "expr": text} for number, text in enumerate(texts)]
    path = tmp_path / "rules.json"  # which is YAML too
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"{len(rules)} rules found" in ran.stdout
