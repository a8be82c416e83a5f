"""The page on metrics is current, and every expression of the alerts and the dashboard names metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import log_broker
from log_broker.server.metrics_page import exported_names, families_of, with_table

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "infra" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "infra" / "grafana" / "fluvial.json"

OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
WORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset"}


@cache
def families() -> list[Any]:
    with log_broker.embedded() as broker:
        return families_of(broker)


def labels_of(metrics: set[str]) -> set[str]:
    found = (family for family in families() if metrics.intersection(exported_names(family)))
    return LABELS_OF_PROMETHEUS.union(*(getattr(family, "_labelnames", ()) for family in found))


def parsed(expression: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that an expression of PromQL names."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    selectors = re.findall(r"\{([^}]*)\}", bare)
    groupings = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", bare)
    labels = {label for each in selectors for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", each)}
    labels |= {label.strip() for each in groupings for label in each.split(",")}
    rest = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    assert rest.count("(") == rest.count(")"), expression
    return {name for name in re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", rest) if name not in WORDS}, labels


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def of_dashboard() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield f"count by ({found[2]}) ({found[1]})"


def test_the_page_is_what_the_code_exports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    again = "python -m log_broker.server.metrics_page docs/metrics.md writes it again"
    assert with_table(page, families()) == page, again


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in alerts()), *of_dashboard()])
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    metrics, labels = parsed(expression)
    assert metrics
    exported = {name for family in families() for name in exported_names(family)}
    assert metrics <= exported | OF_PROMETHEUS
    assert labels <= labels_of(metrics)


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ('sum by (api, le) (rate(a_total{api="produce", x=~"$y"}[5m])) > 0.5', {"a_total"}, {"api", "le", "x"}),
        ('absent(b{job="fluvial"}) or c unless on (topic) d', {"b", "c", "d"}, {"job", "topic"}),
    ],
)
def test_expressions_are_read(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert parsed(expression) == (metrics, labels)


def test_each_alert_says_what_to_do() -> None:
    page = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert headings == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["runbook"] == f"docs/metrics.md#{rule['alert'].lower()}"
        assert f"*{rule['labels']['severity']}*: {rule['annotations']['summary']}\n" in page


def test_prometheus_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool (Debian's package prometheus)")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
