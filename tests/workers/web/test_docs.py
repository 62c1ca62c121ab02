"""Tests that `docs/reference/metrics.md` lists every metric of a full scrape.

Names, types and labels must be the same, and the examples must use them.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import psycopg
import pytest

from jobherd.workers.ipc.counters import OUTCOMES, Policy
from jobherd.workers.web.queue_counts import STATES
from tests.workers.web.support import Web

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| `(?P<name>jobherd_\w+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\| (?P<meaning>(?:\\\||[^|])*) \| `(?P<example>(?:\\\||[^|])*)` \|$",
    re.MULTILINE,
)
SUFFIX = re.compile(r"_(bucket|count|sum)$")


@pytest.fixture(scope="module")
def documented():
    rows = [match.groupdict() for match in ROW.finditer(PAGE)]
    assert (
        len({row["name"] for row in rows})
        == len(rows)
        == len([line for line in PAGE.splitlines() if line.startswith("| `jobherd_")])
    )
    return {row["name"]: row for row in rows}


@pytest.fixture
def scraped(database, monkeypatch):
    """A scrape in which every metric has a series, as name: (type, labels)."""
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO jobherd.ready (kind) VALUES ('k')")
        connection.execute("SELECT jobherd.enqueue('k', '{}', '{\"tenant\": \"acme\"}')")
        connection.execute("SELECT jobherd.set_limit('default', 5)")
        connection.execute("SELECT jobherd.limit('default', '100/min'), jobherd.fair('default')")
        connection.execute('SELECT jobherd.start_flow(\'f\', \'[{"node": "k", "kind": "k"}]\')')
        connection.execute("INSERT INTO jobherd.waits (job, name, topic) VALUES (1, 'n', 'a')")
        connection.execute("SELECT jobherd.schedule('feed', 'k', every => '1 h')")
        connection.execute(
            "INSERT INTO jobherd.ticks (schedule, at, decided, job)"
            " SELECT 'feed', now() - n * interval '1 h', 'ran', n FROM generate_series(1, 2) AS n"
        )
    with Web(database, metrics_tenants=1) as child:
        child.boards[0].tally.count(child.boards[0].tally.declare([Policy("k")])["k"], 0, 0.1)
        child.boards[0].tally.count_error(1, "NO_PAPER")
        children = [{"slot": 0, "kind": "worker", "state": "ready", "pid": 1, "rss": 4096},
                    {"slot": 1, "kind": "gateway", "state": "ready", "pid": 2}]  # fmt: skip
        late = {"0.05": 2, "+Inf": 1}
        child.control.publish(
            {
                "started": time.monotonic(),
                "deaths": {"requested": 1},
                "children": children,
                "version": "1",
                "late": late,
            }
        )
        scrape = child.scrape()
    found = {}
    for family in scrape.families.values():
        for sample in family.samples:
            kind = "info" if family.name.endswith("_info") else family.type
            name = SUFFIX.sub("", sample.name) if kind in {"histogram", "summary"} else sample.name
            found[name] = (kind, {label for label in sample.labels if label != "le"})
    return found


def test_page_lists_every_metric_with_its_type_and_labels(documented, scraped):
    assert {name: (row["type"], set(re.findall(r"\w+", row["labels"]))) for name, row in documented.items()} == scraped


def test_each_example_queries_the_metric_of_its_row(documented, scraped):
    for name, row in documented.items():
        asked = {SUFFIX.sub("", word) for word in re.findall(r"jobherd_\w+", row["example"])}
        assert name in asked
        assert asked <= set(scraped)


def test_page_names_the_values_of_labels(documented):
    assert set(re.findall(r"`(\w+)`", documented["jobherd_worker_jobs_processed_total"]["meaning"])) == {
        *OUTCOMES,
        "outcome",
    }
    assert set(STATES) <= set(re.findall(r"`(\w+)`", documented["jobherd_queue_jobs"]["meaning"]))
