"""Tests the liveness, startup and readiness probes. Each fails for its own reasons and names them."""

from __future__ import annotations

import json
import math
import re
import time

import pytest

from jobherd.workers.web.health import LOOP_LATE, why_not_live, why_not_ready, why_not_started
from jobherd.workers.web.status_report import StatusReport, understand
from tests.workers.web.support import Web

FINE = {
    "listening": True,
    "ready_ever": True,
    "children": [
        {"slot": 0, "kind": "worker", "state": "ready", "pid": 7},
        {"slot": 1, "kind": "maintenance", "state": "ready", "pid": 8},
    ],
}


def report(said=None, *, loop_at=99.9, lease_until=110.0, draining=False, **more) -> StatusReport:
    return understand(
        {**FINE, **(said or {}), **more}, now=100.0, loop_at=loop_at, lease_until=lease_until, draining=draining
    )


def test_healthy_supervisor_passes_all_probes():
    assert (why_not_live(report()), why_not_started(report()), why_not_ready(report())) == ([], [], [])


@pytest.mark.parametrize(
    ("age", "alive"), [(0.0, True), (LOOP_LATE, True), (LOOP_LATE + 0.001, False), (3600.0, False)]
)
def test_supervisor_is_live_while_its_loop_runs(age, alive):
    assert bool(why_not_live(report(loop_at=100.0 - age))) is not alive


def test_supervisor_whose_loop_never_ran_is_not_live():
    assert why_not_live(report(loop_at=0.0)) == ["the supervisor's loop has not run yet"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"draining": True}, "the supervisor is draining"),
        ({"listening": False}, "the supervisor receives no notifications: its LISTEN connection is down"),
        ({"lease_until": 0.0}, "the supervisor has no lease yet"),
        ({"lease_until": 99.0}, "the lease expired 1.0 s ago"),
        ({"lease_until": 100.0}, "the lease expired 0 s ago"),
        ({"loop_at": 90.0}, "the supervisor's loop has not run for 10 s"),
        ({"children": []}, "no worker is ready"),
        ({"children": [{"slot": 0, "kind": "worker", "state": "booting", "pid": 7}]}, "no worker is ready"),
        ({"children": [{"slot": 0, "kind": "worker", "state": "leaving", "pid": 7}]}, "no worker is ready"),
        ({"children": [{"slot": 1, "kind": "maintenance", "state": "ready", "pid": 7}]}, "no worker is ready"),
    ],
)
def test_supervisor_that_is_not_ready_names_the_reason(case, reason):
    assert why_not_ready(report(**case)) == [reason]


def test_polling_supervisor_is_ready_without_a_listen_connection():
    assert why_not_ready(report(listening=False, polling=True)) == []


@pytest.mark.parametrize(
    "case", [{"draining": True}, {"listening": False}, {"lease_until": 0.0}, {"children": []}, {"database": False}]
)
def test_supervisor_that_is_not_ready_is_still_live_and_started(case):
    assert why_not_live(report(**case)) == []
    assert why_not_started(report(**case)) == []


def test_supervisor_has_not_started_before_a_child_process_was_ready():
    assert why_not_started(report(ready_ever=False)) == ["no child process has been ready yet"]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {
            "children": None,
            "deaths": None,
            "renewals": None,
            "started": None,
            "version": None,
            "settled": None,
            "timeouts": None,
        },
        {
            "children": [None, 7, {}],
            "deaths": {"x": None},
            "renewals": "many",
            "listening": "yes",
            "respawns": math.inf,
        },
    ],
)
def test_invalid_value_in_the_report_counts_as_missing(said):
    read = understand(said, now=1.0, loop_at=0.0, lease_until=0.0, draining=False)
    assert not read.listening
    assert read.counts["renewals"] == 0
    assert why_not_ready(read)


def test_probe_paths_respond_with_status_and_reasons():
    with Web() as child:

        def ask(path):
            status, headers, body = child.ask(path)
            assert headers["content-type"] == "application/json"
            said = json.loads(body)
            assert said["ok"] is (status == 200) is (not said["reasons"])
            return status, said["reasons"]

        assert ask("/livez")[0] == ask("/readyz")[0] == ask("/startupz")[0] == 503

        child.control.loop_at = time.monotonic()
        assert ask("/livez") == (200, [])
        assert ask("/startupz") == (503, ["no child process has been ready yet"])

        child.control.lease_deadline = time.monotonic() + 60
        child.control.publish(FINE)
        assert ask("/startupz") == (200, [])
        child.control.loop_at = time.monotonic()
        assert ask("/readyz") == (200, [])

        child.control.draining = True
        assert ask("/readyz") == (503, ["the supervisor is draining"])
        assert ask("/livez") == (200, [])

        child.control.loop_at = time.monotonic() - 60
        code, (reason,) = ask("/livez")
        assert code == 503
        assert re.fullmatch(r"the supervisor's loop has not run for \d+ (s|min)( \d+ s)?", reason)
