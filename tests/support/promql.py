"""Compares the metrics used by the alert rules and the Grafana dashboard in `deploy/` with those of a scrape.
assert unanswered("sum by (kind) (rate(jobherd_worker_timeouts_total[5m]))",
labels_of(scrape.samples)) == []
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import promql_parser as promql
import yaml

from tests.support.herd import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RULES = ROOT / "deploy" / "prometheus" / "jobherd.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "jobherd.json"
ADDED = {"instance", "job"}
"""Labels that Prometheus adds to scraped metrics."""
_GRAFANA = {"$__rate_interval": "5m", "$instance": ".*", "$queue": ".*", "$kind": ".*"}
"""Example values for Grafana's variables."""


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, with the variables of all expressions replaced."""
    found = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    for panel in found:
        for target in panel["targets"]:
            for variable, value in _GRAFANA.items():
                target["expr"] = target["expr"].replace(variable, value)
    return found


def expressions() -> list[str]:
    """Return all expressions of the alert rules and the dashboard."""
    return [rule["expr"] for rule in rules()] + [target["expr"] for panel in panels() for target in panel["targets"]]


def selectors(expression: str) -> list[promql.VectorSelector]:
    """Return every metric selector of an expression.

    Raises:
        ValueError: the expression is not valid PromQL.
    """
    found, todo = [], [promql.parse(expression)]
    while todo:
        node = todo.pop()
        match node:
            case promql.VectorSelector():
                found.append(node)
            case promql.MatrixSelector():
                todo.append(node.vector_selector)
            case promql.AggregateExpr():
                todo += [node.expr] + ([node.param] if node.param else [])
            case promql.BinaryExpr():
                todo += [node.lhs, node.rhs]
            case promql.Call():
                todo += node.args
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                todo.append(node.expr)
    return found


def labels_of(samples: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> dict[str, set[str]]:
    """Return the labels of each metric of a scrape, from pairs of name and labels."""
    labels: dict[str, set[str]] = {"up": set()}
    for name, have in samples:
        labels.setdefault(name, set()).update(label for label, _ in have)
    return labels


def unanswered(expression: str, labels: Mapping[str, set[str]]) -> list[str]:
    """Return the metrics and labels of an expression that a scrape does not have."""
    missing = []
    asked = selectors(expression)
    assert asked, expression
    for selector in asked:
        if selector.name not in labels:
            missing.append(selector.name)
            continue
        missing += [
            f"{selector.name}{{{one.name}}}"
            for one in selector.matchers.matchers
            if one.name not in labels[selector.name] | ADDED
        ]
    known = set().union(*(labels.get(selector.name, set()) for selector in asked)) | ADDED
    grouped = {
        label
        for group in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression)
        for label in re.findall(r"\w+", group)
    }
    return missing + ([] if missing else sorted(grouped - known))
