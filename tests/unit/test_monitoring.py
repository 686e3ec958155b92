"""The dashboard and the alert rules name only series that exist, with labels that they carry."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from spec_toggle.metrics import ToggleMetrics

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "configs/grafana/spec-toggle.json"
RULES = ROOT / "configs/prometheus/spec-toggle.rules.yml"
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
}
# SGLang's names as a query must write them: the colon arrives escaped in some Prometheus releases.
SERIES = re.compile(r"\b(spec_toggle_\w+|sglang\[:_\]\w+)")
PLAIN_COLON = re.compile(r"sglang[:_]\w")


def toggle_series() -> set[str]:
    registry = CollectorRegistry()
    ToggleMetrics({"model_name": "tiny"}, registry)
    families = list(registry.collect())
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def sglang_series() -> set[str]:
    """Names in the calls that construct SGLang's collectors, read from the sources."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "srt/observability"
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            kind = getattr(getattr(node, "func", None), "id", "").lower()
            if isinstance(node, ast.Call) and kind in SUFFIXES:
                values = [k.value for k in node.keywords if k.arg == "name"]
                names = [v.value for v in values if isinstance(v, ast.Constant)]
                found |= {n.removesuffix("_total") + s for n in names for s in SUFFIXES[kind]}
    return found


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def rules() -> list[dict[str, Any]]:
    return [r for group in yaml.safe_load(RULES.read_text())["groups"] for r in group["rules"]]


def queries() -> dict[str, str]:
    dashboard = json.loads(DASHBOARD.read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found[f"variable {variable['name']}"] = variable["query"]["query"]
    found.update({f"alert {rule['alert']}": rule["expr"] for rule in rules()})
    return found


@pytest.mark.parametrize(("where", "query"), queries().items())
def test_a_query_names_existing_series(where: str, query: str) -> None:
    names = {name.replace("[:_]", ":") for name in SERIES.findall(query)}
    assert names and not PLAIN_COLON.search(query), where
    assert names <= toggle_series() | sglang_series(), where


def test_the_sources_of_names_are_not_empty() -> None:
    assert "spec_toggle_switches_total" in toggle_series()
    assert {
        "sglang:num_running_reqs",
        "sglang:e2e_request_latency_seconds_bucket",
    } <= sglang_series()


def test_every_series_of_the_toggle_is_on_the_dashboard() -> None:
    shown = " ".join(query for where, query in queries().items() if where.startswith("panel"))
    assert toggle_series() <= set(SERIES.findall(shown))


def test_panels_have_ids_and_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells


def test_every_alert_is_explained() -> None:
    guide = (ROOT / "docs/operations.md").read_text()
    for rule in rules():
        assert f"### {rule['alert']}" in guide
        assert {"summary", "description"} <= set(rule["annotations"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus's promtool")
def test_alerts_fire_when_they_should() -> None:
    alerts = Path(__file__).with_name("alerts.yml")
    ran = subprocess.run(
        ["promtool", "test", "rules", str(alerts)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
