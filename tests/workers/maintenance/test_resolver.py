"""Tests that maintenance processes make blocked jobs ready, also after one of the processes dies during it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobherd import Client
from jobherd.workers.maintenance.resolver import CHECK, LATER, SOON, Resolver
from jobherd.workers.system import failpoints
from tests.support.points import Points
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench

STATE = "SELECT state FROM jobherd.jobs WHERE id = %(job)s"


def state(bench: Bench, job: int) -> str:
    return bench.ask(STATE, job=job)[0]["state"]


def test_idle_process_is_woken_for_a_new_dependency(bench: Bench):
    maintenance = bench.start("maintenance")
    with Client(bench.dsn) as client:
        first = client.enqueue("act:nothing", delay="1h")
        later = client.enqueue("act:nothing", after=first, when="ended")
        maintenance.nudge()  # as its supervisor does on a notification
        bench.wait_until(lambda: not bench.ask("SELECT FROM jobherd.edges WHERE NOT marked"), "the mark")
        client.cancel(first)
        bench.wait_until(lambda: state(bench, later) == "ready", "the release")
    assert bench.ask("SELECT 1 FROM jobherd.edges") == bench.ask("SELECT 1 FROM jobherd.ends") == []


@pytest.mark.parametrize(
    "point",
    [f"{statement}.{at}" for statement in ("mark_upstreams", "resolve_ends") for at in ("before", "sent", "done")],
)
def test_next_process_makes_the_blocked_jobs_ready_if_one_dies_during_it(
    bench: Bench, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path / "points"))
    monkeypatch.setattr(failpoints, "armed", True)
    monkeypatch.setattr(failpoints, "reach", failpoints._armed)
    points = Points(tmp_path / "points")
    with Client(bench.dsn) as client:
        first = client.enqueue("act:nothing", delay="1h")
        later = client.enqueue_many("act:nothing", [{}] * 3, after=first, when="ended")
        client.cancel(first)
    token = points.arm(point, "kill")
    process = bench.fork("maintenance")
    assert points.wait_taken(token) == process.pid
    wait_for_exit(process.pid)
    bench.start("maintenance")
    bench.wait_until(lambda: {state(bench, job) for job in later} == {"ready"}, "the release")


class Answers:
    """A session whose statements return these rows in turn."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def run(self, statement, parameters=None):
        self.asked.append((statement, parameters))
        return [self.answers.pop(0)]


def test_resolver_sends_no_statement_while_no_job_waits_for_others():
    session = Answers()
    resolver = Resolver(session)
    resolver.note(joins=False)
    assert resolver.due_at == float("inf")
    assert session.asked == []


def test_resolver_checks_soon_after_a_job_end_and_less_often_while_no_job_ends(monkeypatch):
    monkeypatch.setattr("jobherd.workers.maintenance.resolver.time.monotonic", lambda: 0.0)
    nothing = [(None,), (0, None, None, False, True)]
    resolver = Resolver(Answers(*nothing * 12, (None,), (1, 1, 0, False, True), (None,), (0, None, None, False, False)))
    resolver.note(joins=True)
    pauses = []
    for _ in range(12):
        resolver.step()
        pauses.append(resolver.due_at)
    assert pauses[0] == SOON
    assert pauses == sorted(pauses)
    assert pauses[-1] == LATER
    resolver.step()
    assert resolver.due_at == SOON
    resolver.step()
    assert resolver.due_at == float("inf")


def test_resolver_reads_the_next_page_at_once_after_a_full_page(monkeypatch):
    monkeypatch.setattr("jobherd.workers.maintenance.resolver.time.monotonic", lambda: 0.0)
    session = Answers((7,), (0, None, None, True, True), (None,), (1000, 0, 0, False, True))
    resolver = Resolver(session)
    resolver.note(joins=True)
    resolver.step()
    assert resolver.due_at == 0.0
    resolver.step()
    assert resolver.due_at == 0.0
    assert [asked[1]["past"] for asked in session.asked if "past" in asked[1]] == [None, 7]


def test_resolver_searches_for_vanished_jobs_every_hour_page_by_page(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("jobherd.workers.maintenance.resolver.time.monotonic", lambda: now[0])
    monkeypatch.setattr("jobherd.workers.maintenance.resolver.random.random", lambda: 0.5)
    nothing = [(None,), (0, None, None, False, True)]
    answers = [
        *nothing,
        *nothing,
        (7, 40),
        *nothing,
        (None, 80),
        *nothing,
        (None, None),
        *nothing,
        *nothing,
        (None, None),
    ]
    session = Answers(*answers)
    resolver = Resolver(session)
    resolver.step()
    for at in (CHECK / 2, CHECK / 2, CHECK / 2, CHECK, CHECK * 1.5):
        now[0] = at
        resolver.step()
    assert session.answers == []
    pages = [(asked["past_flow"], asked["past_job"]) for name, asked in session.asked if name.endswith("vanished")]
    assert pages == [(None, None), (7, 40), (2**63 - 1, 80), (None, None)]
