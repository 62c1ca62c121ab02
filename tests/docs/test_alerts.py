"""Tests the Grafana dashboard and the alert rules.

Every expression must be PromQL, and query only metrics and labels of a real scrape.

A PromQL parser reads the expressions. `tests/system/test_metrics.py` compares them with the scrape of a
complete supervisor. If `promtool` is installed (`make alerts` fetches it), it checks the rules, runs their
unit tests, and evaluates all rules over a scrape without an alert.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from jobherd.workers.ipc.counters import Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from tests.docs.pages import ROOT, anchors, named, prose
from tests.support.patience import LIMIT
from tests.support.promql import RULES, labels_of, panels, rules, selectors, unanswered
from tests.workers.web.support import Scrape, Web

TESTS = ROOT / "deploy" / "prometheus" / "jobherd.test.yml"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".bench" / "prometheus" / "usr" / "bin")


@pytest.fixture
def scrape(database, monkeypatch) -> Scrape:
    """Return a scrape of a healthy fleet in which every metric has a series."""
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO jobherd.ready (kind) VALUES ('k')")
        connection.execute("SELECT jobherd.enqueue('k', '{}', '{\"tenant\": \"acme\"}')")
        connection.execute(
            "SELECT jobherd.set_limit('default', 5), jobherd.limit('default', '5/s'), jobherd.fair('default')"
        )
        connection.execute('SELECT jobherd.start_flow(\'f\', \'[{"node": "k", "kind": "k"}]\')')
        connection.execute("SELECT jobherd.schedule('feed', 'k', every => '1 h')")
        connection.execute(
            "INSERT INTO jobherd.ticks (schedule, at, decided, job)"
            " SELECT 'feed', now() - n * interval '1 h', 'ran', n FROM generate_series(1, 2) AS n"
        )
    with Web(database, metrics_tenants=1) as child:
        board = child.boards[0]
        board.tally.count(board.tally.declare([Policy("k")])["k"], 0, 0.1)
        board.tally.count_error(1, "NO_PAPER")
        board.say(CurrentWork(Phase.IDLE))
        board.set_database(connected=True)
        now = time.monotonic()
        child.control.loop_at = now
        child.control.lease_deadline = now + 12
        children = [
            {"slot": 0, "kind": "worker", "state": "ready", "pid": 1, "rss": 4096},
            {"slot": 1, "kind": "gateway", "state": "ready", "pid": 2, "rss": 4096},
        ]
        child.control.publish(
            {
                "started": now,
                "deaths": {"requested": 1},
                "children": children,
                "version": "1",
                "listening": True,
                "database": True,
            }
        )
        return child.scrape()


def test_every_alert_queries_only_metrics_and_labels_of_a_scrape(scrape):
    labels = labels_of(scrape.samples)
    assert len(rules()) > 10
    for rule in rules():
        assert unanswered(rule["expr"], labels) == [], rule["alert"]


def test_every_panel_queries_only_metrics_and_labels_of_a_scrape(scrape):
    labels = labels_of(scrape.samples)
    shown = set()
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            expression = target["expr"]
            assert "$" not in expression
            assert unanswered(expression, labels) == [], panel["title"]
            shown |= {re.sub(r"_(bucket|sum|count)$", "", selector.name) for selector in selectors(expression)}
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"\bby \([^)]*\b{label}\b|^jobherd_\w+\{{|^time\(\)", expression), (
                    panel["title"],
                    label,
                )
    places = [tuple(panel["gridPos"].values()) for panel in panels()]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())
    unshown = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in scrape.samples} - shown
    assert unshown <= {
        "jobherd_build_info", "jobherd_lease_renewals_total", "jobherd_draining", "jobherd_queue_jobs_capped", "jobherd_queue_paused",
        "jobherd_queues_measured_timestamp_seconds",
    }  # fmt: skip


def test_unknown_metrics_and_labels_are_found(scrape):
    scrape = labels_of(scrape.samples)
    assert unanswered("sum(jobherd_no_such_thing)", scrape) == ["jobherd_no_such_thing"]
    assert unanswered('jobherd_queue_jobs{colour="red"}', scrape) == ["jobherd_queue_jobs{colour}"]
    assert unanswered("sum by (colour) (jobherd_queue_jobs)", scrape) == ["colour"]
    with pytest.raises(ValueError):
        selectors("sum by (")


def test_every_alert_has_a_reference_entry_a_severity_and_a_description():
    runbook = named("alerts")
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/reference/alerts.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in anchors(runbook), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} <= rule["annotations"].keys()
    assert set(re.findall(r"^## (Jobherd\w+)$", prose(runbook), re.MULTILINE)) == set(names)


def test_every_alert_has_a_unit_test():
    told = TESTS.read_text()
    for rule in rules():
        assert len(re.findall(rf"\b{rule['alert']}\b", told)) >= 2, (
            f"{rule['alert']}: it needs a silent and a firing case"
        )


needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: `make alerts` fetches it")


@needs_promtool
def test_promtool_accepts_the_rules_and_passes_their_unit_tests():
    for words in (["check", "rules", RULES.name], ["test", "rules", TESTS.name]):
        done = subprocess.run(
            [PROMTOOL, *words], cwd=RULES.parent, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_a_scrape(scrape):
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=scrape.text, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_scrape_of_a_healthy_fleet_fires_no_alert(scrape, tmp_path: Path):
    """promtool evaluates every rule over the series of a scrape, which stay the same for two hours."""

    def written(name: str, labels: frozenset) -> str:
        pairs = {**dict(labels), "instance": "a", "job": "jobherd"}
        return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in pairs.items())}}}"

    series = [{"series": 'up{instance="a",job="jobherd"}', "values": "1x120"}]
    for (name, labels), value in scrape.samples.items():
        moves = "timestamp" in name or name == "jobherd_start_time_seconds"
        series.append({"series": written(name, labels), "values": "0+60x120" if moves else f"{value}x120"})
    silent = [{"eval_time": "119m", "alertname": rule["alert"], "exp_alerts": []} for rule in rules()]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": silent}],
    }
    (tmp_path / "scrape.yml").write_text(json.dumps(test))  # JSON is also YAML
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "scrape.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
