"""After mixed work, the values of /metrics equal the rows of the database."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import LIMIT
from tests.support.promql import expressions, labels_of, unanswered

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate

TRUTH = """
SELECT kind, outcome, count(*)::integer FROM (
    SELECT h.kind, CASE state WHEN 'completed' THEN 'ok' ELSE state END AS outcome FROM jobherd.history h
    UNION ALL
    SELECT j.kind, a.outcome FROM jobherd.attempts a JOIN jobherd.jobs j ON j.id = a.job
) AS ends GROUP BY 1, 2
"""
Labels = tuple[tuple[str, str], ...]


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def scrape(address: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(fetch(address, "/metrics")[1]):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def turn(fleet: Fleet) -> None:
    """Let the supervisor's loop take a whole turn, so that the values it publishes are current."""
    for _ in range(2):
        before = len(fleet.log)
        fleet.signal(signal.SIGUSR1)
        fleet.wait_log(" wanted, the database is there", after=before)


def respawned(found: dict[str, dict[Labels, float]]) -> bool:
    deaths = sum(found["jobherd_child_deaths_total"].values())
    return found["jobherd_child_respawns_total"][()] == deaths and sum(found["jobherd_worker_in_flight"].values()) == 0


@pytest.mark.promise("A40", "A41", "A42", "A43")
def test_metrics_equal_the_rows_when_no_job_runs(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, http="127.0.0.1:0", grace="0.2s", respawn_initial="0.02s")
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    # The first renewal comes 0.2 s after the registration; without its echo the supervisor is not ready.
    stage.wait(lambda: fetch(address, "/readyz")[0] == 200, lambda: f"/readyz: {fetch(address, '/readyz')}")
    for path in ("/livez", "/startupz"):
        assert fetch(address, path)[0] == 200, fetch(address, path)
    over = [stage.enqueue("t:noop") for _ in range(20)]
    over += [
        stage.enqueue(kind)
        for kind in (
            "d:returns",
            "d:retry",
            "d:raises",
            "d:failed",
            "d:poison",
            "d:poison-on",
            "c:exit",
            "c:abort",
            "x:swallows",
            "d:no-json",
        )
    ]
    waiting = [stage.enqueue(kind) for kind in ("d:nack", "d:snooze", "d:backoff")]
    over += [
        stage.call(
            """SELECT jobherd.enqueue('t:noop', '{}', jsonb_build_object('expires_at', now() - interval '1 s'))"""
        )
    ]
    cancelled = stage.enqueue("t:gate", '{"label": "cancelled"}')
    gate.wait_arrival("cancelled")
    stage.cancel(cancelled)
    over.append(cancelled)
    running = stage.enqueue("t:gate", '{"label": "running"}')
    stage.wait_all(over, "completed", "failed", "cancelled", "expired")
    stage.wait_all(waiting, "scheduled", "retrying")
    arrival = gate.wait_arrival("running")
    turn(fleet)
    found = scrape(address)
    assert found["jobherd_worker_in_flight"][("kind", "t:gate"),] == 1
    arrival.open()
    stage.wait_state(running, "completed")
    # Each dead process is replaced, some after a backoff. Values about processes are current after the next
    # turn of the loop.
    stage.wait(lambda: turn(fleet) or respawned(scrape(address)), "as many replacements as deaths")

    found = scrape(address)
    told: dict[tuple[str, str], int] = {}
    for labels, value in found["jobherd_worker_jobs_processed_total"].items():
        said = dict(labels)
        # the row of a poisoned job has the state `failed`
        outcome = "failed" if said["outcome"] == "poison" else said["outcome"]
        if value:
            told[said["kind"], outcome] = told.get((said["kind"], outcome), 0) + int(value)
    assert told == {(kind, outcome): count for kind, outcome, count in stage.run(TRUTH)}
    processed = found["jobherd_worker_jobs_processed_total"]
    assert processed[("kind", "d:poison"), ("outcome", "poison")] == 1
    assert processed[("kind", "c:exit"), ("outcome", "retry")] == 2
    assert found["jobherd_worker_timeouts_total"][("kind", "x:swallows"),] == 1
    assert sum(found["jobherd_worker_in_flight"].values()) == 0
    runs = found["jobherd_worker_job_duration_seconds_count"]
    assert runs[("kind", "t:noop"),] == 20, "an expired job did not run"
    deaths = {
        dict(labels)["cause"]: int(value) for labels, value in found["jobherd_child_deaths_total"].items() if value
    }
    assert deaths["timeout"] == 1
    assert deaths["signal"] == 1
    assert found["jobherd_child_respawns_total"][()] == sum(deaths.values())
    assert found["jobherd_listening"][()] == 1
    # Each metric of the alert rules and the dashboard exists, except those of features that this fleet does
    # not use: tenants, limits, a gateway, schedules, workflows.
    labels = labels_of((name, pairs) for name, series in found.items() for pairs in series)
    missing = {each for expression in expressions() for each in unanswered(expression, labels)}
    assert missing <= {
        "jobherd_tenant_jobs",
        "jobherd_gateway_streams",
        "jobherd_gateway_slots",
        "jobherd_gateway_sessions_total",
        "jobherd_gateway_messages_total",
        "jobherd_gateway_tasks_per_message_sum",
        "jobherd_gateway_tasks_per_message_count",
        "jobherd_gateway_write_wait_seconds_bucket",
        "jobherd_gateway_results_total",
        "jobherd_gateway_refused_total",
        "jobherd_concurrency_limit",
        "jobherd_concurrency_running",
        "jobherd_rate_limit",
        "jobherd_rate_tokens",
        "jobherd_partitions_ready",
        "jobherd_partitions_throttled",
        "jobherd_paused",
        "jobherd_schedules",
        "jobherd_schedule_late_seconds",
        "jobherd_schedule_last_delay_seconds",
        "jobherd_schedule_last_success_timestamp_seconds",
        "jobherd_schedule_previous_timestamp_seconds",
        "jobherd_schedule_ticks_total",
        "jobherd_resolver_lag_seconds",
        "jobherd_flows",
        "jobherd_flow_duration_seconds_count",
        "jobherd_blocked_jobs",
        "jobherd_suspended_jobs",
        "jobherd_signals_total",
        "jobherd_children_resident_bytes",
    }
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
