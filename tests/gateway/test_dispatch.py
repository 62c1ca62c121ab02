"""DispatchService with real supervisors: a stream of tasks, and results and heartbeats in separate calls.

Most tests share a supervisor, so each test has its own kind.
"""

from __future__ import annotations

import itertools
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.caller import Caller, Rejected
from tests.gateway.conftest import QUEUE, TOKENS, serve
from tests.support.patience import LIMIT
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.conftest import Served
    from tests.support.fleet import Stage

NUMBERS = itertools.count(1)


@pytest.fixture
def client(served: Served) -> Iterator[Caller]:
    with Caller(served.where, token=TOKENS["all"]) as one:
        yield one


@pytest.fixture
def kind() -> str:
    """The kind of a test's jobs."""
    return f"d:{next(NUMBERS)}"


def enqueue(stage: Stage, kind: str, number: int = 1) -> list[int]:
    return [stage.enqueue(kind, queue=QUEUE) for _ in range(number)]


def stream(client: Caller, kind: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """Open a stream of tasks. Return its number and the gateway's answer."""
    number = client.open("StreamJobs", queues=[QUEUE], kinds=[kind], **more)
    return number, client.next(number)["opened"]


def tasks(client: Caller, number: int, count: int) -> list[dict[str, Any]]:
    """Return the next `count` tasks of a stream."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += client.next(number)["tasks"]["tasks"]
    assert len(found) == count
    return found


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [int(task["id"]) for task in found]


def completed(task: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": task["id"], "claim": task["claim"], "ran_seconds": 0.1, "completed": {}}


def ref(task: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": task["id"], "claim": task["claim"]}


@pytest.mark.promise("E5", "E18")
def test_stream_gets_max_in_flight_tasks_and_more_after_results(served: Served, client: Caller, kind: str):
    stage = served.stage
    jobs = enqueue(stage, kind, 3)
    number, opened = stream(client, kind, max_in_flight=2, worker_id="w-1")
    assert opened["worker_id"] == "w-1"
    first = tasks(client, number, 2)
    assert ids(first) == jobs[:2]
    assert [task["attempt"] for task in first] == [1, 1]
    assert client.call("ReportResult", session=opened["session"], results=[completed(first[0])]) == {}
    (third,) = tasks(client, number, 1)
    assert ids([third]) == jobs[2:]
    client.call("ReportResult", session=opened["session"], results=[completed(first[1]), completed(third)])
    stage.wait_all(jobs, "completed")
    assert stage.job(jobs[0])["ran_on"].startswith("w-1 via ")


def test_metrics_count_results_that_calls_report(stage: Stage, kind: str):
    """Also at a gateway that does not serve the session."""
    ports = [spare_port(), spare_port()]
    here, there = (serve(stage, http=f"127.0.0.1:{port}").where for port in ports)
    jobs = enqueue(stage, kind, 2)
    with Caller(here) as client, Caller(there) as other:
        number, opened = stream(client, kind, max_in_flight=2)
        for caller, task in zip((client, other), tasks(client, number, 2), strict=True):
            unknown = {**completed(task), "task_id": "999999"}
            caller.call("ReportResult", session=opened["session"], results=[completed(task), unknown])
        stage.wait_all(jobs, "completed")
        for port, streams in zip(ports, (1, 0), strict=True):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
                metrics = answer.read().decode().splitlines()
            assert {
                f'jobherd_worker_jobs_processed_total{{kind="{kind}",outcome="ok"}} 1.0',
                'jobherd_gateway_results_total{answer="recorded"} 1.0',
                'jobherd_gateway_results_total{answer="lost"} 1.0',
                f'jobherd_gateway_streams{{service="dispatch"}} {streams}.0',
                f'jobherd_gateway_sessions_total{{event="opened"}} {streams}.0',
                f"jobherd_gateway_tasks_per_message_sum {2.0 * streams}",
            } <= set(metrics)


@pytest.mark.promise("E8")
def test_cut_stream_ends_its_session_and_its_unreported_task_runs_again(stage: Stage, kind: str):
    where = serve(stage, gateway_linger="200ms", gateway_lease="10s").where
    jobs = enqueue(stage, kind)
    with Caller(where) as client:
        number, opened = stream(client, kind)
        (task,) = tasks(client, number, 1)
        session = int(opened["session"])
        assert stage.run("SELECT host, via IS NOT NULL FROM jobherd.supervisors WHERE id = %s", session) == [
            ("local", True)
        ]
        client.cut(number)
        stage.wait(lambda: stage.attempts(jobs[0]), "the task to be reclaimed")
        stage.wait(
            lambda: not stage.call("SELECT count(*) FROM jobherd.supervisors WHERE id = %s", session),
            "the session to end",
        )
        again, _ = stream(client, kind)
        (second,) = tasks(client, again, 1)
    assert ids([second]) == ids([task]) == jobs
    assert second["attempt"] == 2


@pytest.mark.promise("E13", "E14")
def test_task_is_claimed_before_it_is_sent(served: Served, client: Caller, kind: str):
    stage = served.stage
    jobs = enqueue(stage, kind)
    number, _ = stream(client, kind)
    (task,) = tasks(client, number, 1)
    assert stage.run("SELECT token FROM jobherd.running r WHERE r.jobs[1].kind = %s", kind) == [(int(task["claim"]),)]
    assert stage.job(jobs[0])["state"] == "running"


@pytest.mark.promise("E17", "E21")
def test_results_and_heartbeats_succeed_while_the_stream_is_cut_and_the_session_resumes(
    served: Served, client: Caller, kind: str
):
    stage = served.stage
    jobs = enqueue(stage, kind, 2)
    number, opened = stream(client, kind, max_in_flight=2)
    one, two = tasks(client, number, 2)
    session = opened["session"]
    client.cut(number)
    beat = client.call("Heartbeat", session=session, tasks=[ref(one), ref(two)], extend_seconds=120)
    assert "lost" not in beat
    assert beat["session_seconds"] > 0
    assert client.call("ReportResult", session=session, results=[completed(one)]) == {}
    stage.wait_state(jobs[0], "completed")
    again, resumed = stream(client, kind, session=session, held=[ref(two)], max_in_flight=2)
    assert (resumed["session"], resumed.get("lost")) == (session, None)
    assert client.call("ReportResult", session=session, results=[completed(two)]) == {}
    stage.wait_state(jobs[1], "completed")
    assert stage.job(jobs[1])["attempts"] == 1
    client.cut(again)


@pytest.mark.promise("E17")
def test_results_and_heartbeats_succeed_at_another_gateway_which_frees_the_slot(stage: Stage, kind: str):
    here, elsewhere = serve(stage).where, serve(stage).where
    jobs = enqueue(stage, kind, 2)
    with Caller(here) as client, Caller(elsewhere) as other:
        number, opened = stream(client, kind)
        (one,) = tasks(client, number, 1)
        beat = other.call("Heartbeat", session=opened["session"], tasks=[ref(one)], extend_seconds=90)
        assert "lost" not in beat
        assert stage.run("SELECT token, job FROM jobherd.extensions") == [(int(one["claim"]), jobs[0])]
        assert other.call("ReportResult", session=opened["session"], results=[completed(one)]) == {}
        stage.wait_state(jobs[0], "completed")
        (two,) = tasks(client, number, 1)
        # The call may be repeated, at either gateway.
        assert client.call("ReportResult", session=opened["session"], results=[completed(one)]) == {}
        assert other.call("ReportResult", session=opened["session"], results=[completed(two)]) == {}
    stage.wait_all(jobs, "completed")
    assert stage.completed_twice() == []


@pytest.mark.promise("E15")
def test_claim_rejected_by_the_database_does_not_end_the_stream(served: Served, client: Caller, kind: str):
    stage = served.stage
    stage.run(
        """CREATE FUNCTION t_no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
           CREATE TRIGGER t_no BEFORE INSERT ON jobherd.running FOR EACH ROW EXECUTE FUNCTION t_no()"""
    )
    jobs = enqueue(stage, kind)
    number, _ = stream(client, kind)
    served.fleet.wait_log("the database rejected a claim")
    stage.run("DROP TRIGGER t_no ON jobherd.running")
    assert ids(tasks(client, number, 1)) == jobs


@pytest.mark.promise("E16")
def test_end_of_a_stream_does_not_affect_the_others(served: Served, client: Caller, kind: str):
    stage = served.stage
    number, opened = stream(client, kind)
    with Caller(served.where, token=TOKENS["all"]) as dying:
        stream(dying, kind)
        dying.kill()
    jobs = enqueue(stage, kind)
    (task,) = tasks(client, number, 1)
    client.call("ReportResult", session=opened["session"], results=[completed(task)])
    stage.wait_all(jobs, "completed")


def test_stream_receives_the_cancellation_of_its_task(served: Served, client: Caller, kind: str):
    stage = served.stage
    jobs = enqueue(stage, kind)
    number, opened = stream(client, kind)
    (task,) = tasks(client, number, 1)
    stage.call("SELECT jobherd.cancel(%s)", jobs[0])
    assert client.next(number)["cancel"] == {"task": ref(task), "reason": "REASON_CANCELLED"}
    result = {**ref(task), "cancelled": {}}
    assert client.call("ReportResult", session=opened["session"], results=[result]) == {}
    stage.wait_state(jobs[0], "cancelled")


@pytest.mark.promise("D38")
def test_script_claims_jobs_without_a_stream(served: Served, client: Caller, kind: str):
    stage = served.stage
    assert client.call("ClaimJobs", ready={"kinds": [kind]}).get("tasks") is None
    jobs = enqueue(stage, kind, 3)
    answer = client.call("ClaimJobs", worker_id="cron", ready={"kinds": [kind], "count": 2})
    one, two = answer["tasks"]
    assert ids([one, two]) == jobs[:2]
    # The script claims more jobs before it reports these.
    again = client.call("ClaimJobs", session=answer["session"], ready={"kinds": [kind]}, wait_seconds=30)
    assert (again["session"], ids(again["tasks"])) == (answer["session"], jobs[2:])
    results = [completed(task) for task in (one, two, *again["tasks"])]
    assert client.call("ReportResult", session=answer["session"], results=results) == {}
    stage.wait_all(jobs, "completed")
    assert {stage.job(job)["attempts"] for job in jobs} == {1}


def test_script_that_waits_gets_a_job_enqueued_meanwhile(served: Served, client: Caller, kind: str):
    stage = served.stage
    number = client.begin("ClaimJobs", worker_id=kind, ready={"kinds": [kind]}, wait_seconds=30)
    stage.wait(lambda: stage.call("SELECT count(*) FROM jobherd.supervisors WHERE host = %s", kind), "the session")
    jobs = enqueue(stage, kind)
    assert ids(client.wait(number)["tasks"]) == jobs


def test_results_without_an_outcome_or_with_a_wrong_claim_or_session_are_rejected(
    served: Served, client: Caller, kind: str
):
    stage = served.stage
    jobs = enqueue(stage, kind)
    number, opened = stream(client, kind)
    (task,) = tasks(client, number, 1)
    other = {"id": task["id"], "claim": str(int(task["claim"]) + 1)}
    answer = client.call("ReportResult", session=opened["session"], results=[ref(task), completed(other)])
    assert [one["reason"] for one in answer["refusals"]] == ["REASON_INVALID", "REASON_LOST"]
    assert stage.job(jobs[0])["state"] == "running"
    beat = client.call("Heartbeat", session=opened["session"], tasks=[ref(other), ref(task)], extend_seconds=1)
    assert beat["lost"] == [ref(other)]
    for method in ("ReportResult", "Heartbeat"):
        for session in ("", "9999999", "seven", "9" * 40):
            with pytest.raises(Rejected) as caught:
                client.call(
                    method, session=session, **({"results": [completed(task)]} if method == "ReportResult" else {})
                )
            assert caught.value.code == "NOT_FOUND"
