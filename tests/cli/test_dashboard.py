"""`jobherd dashboard`: one dashboard and one page of metrics for several databases."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.rows import send
from tests.cli.shell import LIMIT, environment, jobherd
from tests.cli.test_shards import name_of
from tests.support.checkout import ROOT

AWAY = "postgresql://app:hunter2@127.0.0.1:1/x"


@contextlib.contextmanager
def serving(*dsns):
    """Run a dashboard and yield its address. Terminate it at the end, and check that it exits with 0."""
    words = [f"--dsn={dsn}" for dsn in dsns]
    # With the time limits of a test: if the machine stalls for 3 s, a database would count as unreachable.
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.dashboard.patient",
            "dashboard",
            *words,
            "--http",
            "127.0.0.1:0",
            "--log-format",
            "text",
        ],
        stderr=subprocess.PIPE,
        env=environment(None),
        cwd=ROOT,
    )
    said = ""
    try:
        while not (found := re.search(r"the dashboard is (http://\S+)/\n", said)):
            line = process.stderr.readline().decode()
            assert line, said
            said += line
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            said += process.communicate(timeout=LIMIT)[1].decode()
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "hunter2" not in said


def get(url):
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def both(cluster, template):
    with cluster.database(template=template) as first, cluster.database(template=template) as second:
        yield first, second


def test_several_databases_have_one_dashboard_and_one_page_of_metrics(both):
    for dsn, queue in zip(both, ("here", "there"), strict=True):
        send(dsn, "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', %s)", queue)
    with serving(*both, AWAY) as url:
        page = get(f"{url}/")
        for name in (*map(name_of, both), "127.0.0.1:1/x"):
            assert name in page
        assert "hunter2" not in page
        for link in re.findall(r'<tr id="[^"]*">\s*<th scope="row"><a href="([^"]*)"', page)[:2]:
            assert "Queues" in get(f"{url}{link}")
        text = get(f"{url}/metrics")
        while not all(
            queue in text for queue in ("here", "there")
        ):  # a scrape waits 1 s for an answer, and the next gets it
            text = get(f"{url}/metrics")
    helps = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    assert sorted(helps) == sorted(set(helps)), "each metric family must appear once"
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {each.labels["database"]: each.value for each in families["jobherd_database_up"]} == {
        name_of(both[0]): 1,
        name_of(both[1]): 1,
        "127.0.0.1:1/x": 0,
    }
    jobs = {
        (each.labels["database"], each.labels["queue"]): each.value
        for each in families["jobherd_queue_jobs"]
        if each.labels["state"] == "ready"
    }
    assert jobs == {(name_of(both[0]), "here"): 1, (name_of(both[1]), "there"): 1}
    assert "jobherd_queue_served" not in families


def test_one_database_has_the_dashboard_of_a_supervisor(both):
    with serving(both[0]) as url:
        assert "Queues" in get(f"{url}/queues")
        assert "All databases" not in get(f"{url}/")
        assert f'jobherd_database_up{{database="{name_of(both[0])}"}}' in get(f"{url}/metrics")


def test_database_that_is_given_twice_is_rejected(both):
    twice = jobherd("dashboard", f"--dsn={both[0]}", f"--dsn={both[0]} application_name=other", dsn=None)
    assert twice.code == 2
    assert f"two addresses lead to {name_of(both[0])}: give each database once" in twice.err


def test_http_address_that_cannot_be_served_is_reported(both):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = jobherd("dashboard", f"--dsn={both[0]}", "--http", address, dsn=None)
    assert answer.code == 78
    assert f"cannot listen on {address} (Address already in use): free the port or set --http" in answer.err
    for words, problem in (("off", "no address to serve"), ("0.0.0.0:0", "Set dashboard_operate_token")):
        answer = jobherd("dashboard", f"--dsn={both[0]}", "--http", words, dsn=None)
        assert (answer.code, problem in answer.err) == (78, True), answer
