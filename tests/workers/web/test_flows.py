"""Tests the metrics of flows: they equal the rows and count each flow that ends once."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd.workers.web import flow_counts, queue_depth
from tests.workers.web.support import Web

FLOWS = "jobherd_flows"
COUNT = "jobherd_flow_duration_seconds_count"
SUM = "jobherd_flow_duration_seconds_sum"
NONE = {("completed",): 0, ("failed",): 0, ("cancelled",): 0}


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Let every scrape measure again, wait for the result, and count all flows ended until then."""
    monkeypatch.setattr(queue_depth, "PERIOD", 0.0)
    monkeypatch.setattr(queue_depth, "EASE", 0.0)
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    monkeypatch.setattr(flow_counts, "LAG", 0.0)


def start(conn):
    nodes = [{"node": "a", "kind": "a:b"}, {"node": "b", "kind": "a:b", "after": "a"}]
    return conn.execute("SELECT jobherd.start_flow('f', %s::jsonb)", [json.dumps(nodes)]).fetchone()[0]


def finish(conn, flow, state, seconds):
    conn.execute(
        "UPDATE jobherd.flows SET state = %s, ended_at = clock_timestamp(), created_at = clock_timestamp() - make_interval(secs => %s)"
        " WHERE id = %s",
        [state, seconds, flow],
    )


def test_without_a_flow_there_is_no_series(database):
    with Web(database) as child:
        text = child.scrape().text
    assert "jobherd_flow" not in text
    assert "jobherd_blocked_jobs" not in text
    assert "jobherd_resolver_lag_seconds" not in text
    assert "jobherd_suspended_jobs" not in text
    assert "jobherd_signals" not in text


def test_open_flows_and_blocked_jobs_are_counted(database, conn):
    start(conn)
    conn.execute("SELECT jobherd.cancel_flow(%s)", [start(conn)])
    with Web(database) as child:
        scrape = child.scrape()
        assert scrape.all(FLOWS) == {("open",): 1, ("cancelling",): 1}
        assert scrape.of("jobherd_blocked_jobs") == 2
        assert scrape.of("jobherd_resolver_lag_seconds") == 0
        conn.execute("TRUNCATE jobherd.flows, jobherd.blocked")
        scrape = child.scrape()
        assert set(scrape.all(FLOWS).values()) == {0}, "a gauge does not vanish"
        assert scrape.of("jobherd_blocked_jobs") == 0


def test_suspended_jobs_and_signals_are_counted(database, conn):
    def suspended(signal, children):
        return {("signal",): signal, ("children",): children}

    conn.execute("SELECT jobherd.signal('a')")
    with Web(database) as child:
        assert "jobherd_suspended_jobs" not in child.scrape().text, "the signal was sent before this process began"
        conn.execute(
            "INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (1, 'n', 'a', NULL), (2, 'n', 'flow/7', 7)"
        )
        scrape = child.scrape()
        assert scrape.all("jobherd_suspended_jobs") == suspended(1, 1)
        assert scrape.of("jobherd_signals_total") == 0
        conn.execute("SELECT jobherd.signal('a'), jobherd.signal('b')")
        conn.execute("INSERT INTO jobherd.signals (topic) VALUES ('flow/7')")
        conn.execute("TRUNCATE jobherd.waits")
        scrape = child.scrape()
        assert scrape.all("jobherd_suspended_jobs") == suspended(0, 0)
        assert scrape.of("jobherd_signals_total") == 2, "the end of child jobs is not a signal"
        assert child.scrape().of("jobherd_signals_total") == 2


def test_each_ended_flow_is_counted_once_with_its_duration(database, conn):
    flow, other = start(conn), start(conn)
    finish(conn, start(conn), "completed", 5)
    with Web(database) as child:
        assert child.scrape().all(COUNT) == NONE, "it ended before this process began"
        finish(conn, flow, "failed", 90)
        assert child.scrape().all(COUNT) == NONE | {("failed",): 1}
        scrape = child.scrape()
        assert scrape.all(COUNT) == NONE | {("failed",): 1}
        assert 90 <= scrape.of(SUM, state="failed") < 91
        finish(conn, other, "completed", 7)
        assert child.scrape().all(COUNT) == NONE | {("failed",): 1, ("completed",): 1}


def test_resolver_lag_is_the_age_of_an_unresolved_job_end(database, conn):
    conn.execute("INSERT INTO jobherd.ends (flow, job, state, at) VALUES (0, 1, 'completed', now() - interval '90 s')")
    with Web(database) as child:
        assert 90 <= child.scrape().of("jobherd_resolver_lag_seconds") < 3600
        conn.execute("DELETE FROM jobherd.ends")
        assert child.scrape().of("jobherd_resolver_lag_seconds") == 0
