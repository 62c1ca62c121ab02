"""Every outcome of a remote worker, and the resulting rows in the database."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.conftest import TOKENS
from tests.gateway.remote import done, ids, reasons, ref, result

if TYPE_CHECKING:
    from tests.gateway.conftest import Served
    from tests.gateway.remote import Stream


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.promise("D3")
@pytest.mark.promise("D10")
@pytest.mark.promise("E13")
def test_task_is_sent_after_its_claim_and_its_result_acknowledged_after_the_commit(served: Served, worker: Stream):
    job = served.enqueue("o:done", '{"n": 1}', priority=3, max_attempts=4)
    task = worker.task("o:done", lease_seconds=20)
    assert served.stage.state(job) == "running", "the claim is committed before the task is sent"
    assert (task["id"], task["kind"], base64.b64decode(task["payload"])) == (str(job), "o:done", b'{"n": 1}')
    assert (task["attempt"], task["max_attempts"], task["priority"], task["lease_seconds"]) == (1, 4, 3, 20)
    assert "refusals" not in worker.end(done(task, {"a": [1]}))
    row = served.stage.job(job)
    assert (row["state"], row["result"], row["attempts"]) == ("completed", {"a": [1]}, 1)
    assert row["ran_on"].startswith("w1 via "), row["ran_on"]


OUTCOMES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "completed": ({"completed": {}}, "completed", {"attempts": 1}),
    "failed": ({"failed": {"error": "no", "code": "E1"}}, "retrying", {"attempts": 1, "error": "no"}),
    "failed for the last time": ({"failed": {"error": "no"}}, "failed", {"attempts": 1, "error": "no"}),
    "poison": ({"failed": {"error": "no", "poison": True}}, "failed", {"attempts": 1}),
    "crash": ({"failed": {"error": "died", "crash": {"signal": 9}}}, "retrying", {"attempts": 1, "crashes": 1}),
    "nack": ({"nack": {"delay_seconds": 60, "reason": "later"}}, "retrying", {"attempts": 1}),
    "nack below 0": ({"nack": {"delay_seconds": -5, "reason": "now"}}, "retrying", {"attempts": 1}),
    "snooze": ({"snooze": {"delay_seconds": 60}}, "scheduled", {"attempts": 0}),
    "abandon": ({"abandon": {}}, "ready", {"attempts": 0}),
    "cancelled": ({"cancelled": {}}, "cancelled", {"attempts": 1}),
    "expired": ({"expired": {}}, "expired", {}),
}


@pytest.mark.promise("D3")
@pytest.mark.promise("D18")
@pytest.mark.promise("D20")
@pytest.mark.promise("D21")
@pytest.mark.promise("D22")
@pytest.mark.parametrize("name", OUTCOMES)
def test_each_outcome_leads_to_its_state(served: Served, worker: Stream, name: str):
    sent, state, columns = OUTCOMES[name]
    kind = f"o:{name.replace(' ', '-')}"
    job = served.enqueue(kind, max_attempts=1 if "last" in name else 5)
    task = worker.task(kind)
    assert "refusals" not in worker.end(result(task, **sent))
    row = served.stage.job(job)
    assert row["state"] == state
    assert {column: row[column] for column in columns} == columns
    if state == "ready":
        served.stage.cancel(job)


@pytest.mark.promise("D23")
def test_result_without_an_outcome_is_rejected_and_the_task_keeps_running(served: Served, worker: Stream):
    job = served.enqueue("o:none")
    task = worker.task("o:none")
    assert reasons(worker.end(ref(task))) == {job: "REASON_INVALID"}
    assert served.stage.state(job) == "running"
    assert "refusals" not in worker.end(done(task))
    assert served.stage.state(job) == "completed"


def test_result_with_invalid_numbers_or_json_is_rejected_and_the_task_keeps_running(served: Served, worker: Stream):
    job = served.enqueue("o:nan")
    task = worker.task("o:nan")
    assert reasons(worker.end({**done(task), "ran_seconds": "NaN"})) == {job: "REASON_INVALID"}
    assert reasons(worker.end(result(task, snooze={"delay_seconds": "Infinity"}))) == {job: "REASON_INVALID"}
    assert reasons(worker.end(result(task, completed={"result": text(b"{")}))) == {job: "REASON_INVALID"}
    assert "refusals" not in worker.end(done(task))


def test_result_that_cannot_be_stored_does_not_affect_other_results(served: Served, worker: Stream):
    jobs = [served.enqueue("o:store") for _ in range(3)]
    tasks = worker.tasks(worker.ready("o:store", count=3))
    assert ids(tasks) == jobs
    bad = result(tasks[1], failed={"error": "a\0b", "code": "c\0d", "traceback": "t\0" * 100_000, "poison": True})
    assert "refusals" not in worker.end(done(tasks[0]), bad, done(tasks[2], "\0"))
    assert served.stage.states(jobs) == ["completed", "failed", "failed"]
    assert "cannot be stored" in served.stage.job(jobs[2])["error"], "as with a local handler"


def test_result_sent_twice_is_recorded_once_and_acknowledged_twice(served: Served, worker: Stream):
    job = served.enqueue("o:twice")
    task = worker.task("o:twice")
    both = worker.end(done(task, 1), done(task, 2))
    again = worker.end(done(task, 3))
    assert "refusals" not in both
    assert "refusals" not in again
    assert served.stage.job(job)["result"] == 1
    assert served.stage.completed_twice() == []


def test_result_for_a_task_of_another_session_or_claim_is_lost_and_changes_nothing(served: Served, worker: Stream):
    job = served.enqueue("o:mine")
    task = worker.task("o:mine")
    other = worker.client.stream(served.where)
    other.hello(token=TOKENS["all"])
    assert reasons(other.end(done(task))) == {job: "REASON_LOST"}
    wrong = {**ref(task), "claim": str(int(task["claim"]) + 1)}
    assert reasons(other.end({**wrong, "completed": {}})) == {job: "REASON_LOST"}
    assert reasons(worker.end({**wrong, "completed": {}})) == {job: "REASON_LOST"}
    assert served.stage.state(job) == "running"
    assert "refusals" not in worker.end(done(task))


@pytest.mark.promise("D10")
@pytest.mark.parametrize(("count", "expected"), [(0, 1), (1, 1), (500, 500), (501, 500)])
def test_ready_gets_as_many_tasks_as_it_requests_and_at_most_500(
    served: Served, worker: Stream, count: int, expected: int
):
    kind = f"o:count{count}"
    jobs = served.stage.enqueue_many(kind, 510, queue="remote")
    tasks = worker.tasks(worker.ready(kind, count=count))
    assert ids(tasks) == jobs[:expected]
    assert len({task["claim"] for task in tasks}) == 1, "one Ready gets one claim"
    assert "refusals" not in worker.end(*map(done, tasks))
    assert served.stage.census(jobs[:expected]) == {"completed": expected}
    served.stage.run("SELECT jobherd.cancel(id) FROM jobherd.ready WHERE kind = %s", kind)


@pytest.mark.promise("D12")
def test_results_of_a_claim_can_be_sent_in_parts_and_with_the_next_ready(served: Served, worker: Stream):
    jobs = served.stage.enqueue_many("o:parts", 6, queue="remote")
    tasks = worker.tasks(worker.ready("o:parts", count=4))
    assert "refusals" not in worker.end(done(tasks[2]))
    worker.results(
        *(result(task, failed={"error": "x", "poison": True}) for task in tasks[:2]),
        ready={"number": 9, "kinds": ["o:parts"], "count": 2},
    )
    more = worker.tasks(9)
    assert ids(more) == jobs[4:]
    assert "refusals" not in worker.end(done(tasks[3]), *map(done, more))
    assert served.stage.states(jobs) == ["failed", "failed", *["completed"] * 4]


def test_released_rest_of_a_claim_is_ready_again_and_counts_no_attempt(served: Served, worker: Stream):
    jobs = served.stage.enqueue_many("o:release", 3, queue="remote")
    tasks = worker.tasks(worker.ready("o:release", count=3))
    worker.send(release={"claim": tasks[0]["claim"], "behind_task_id": tasks[0]["id"]})
    served.stage.wait_all(jobs[1:], "ready")
    assert [served.stage.job(job)["attempts"] for job in jobs[1:]] == [0, 0]
    assert reasons(worker.end(done(tasks[0]), done(tasks[1]))) == {jobs[1]: "REASON_LOST"}
    again = worker.tasks(worker.ready("o:release", count=2))
    assert ids(again) == jobs[1:]
    worker.send(release={"claim": again[0]["claim"]})
    served.stage.wait_all(jobs[1:], "ready")
    served.stage.run("SELECT jobherd.cancel(id) FROM jobherd.ready WHERE kind = 'o:release'")


@pytest.mark.promise("D13")
def test_heartbeat_acknowledgement_names_the_lost_tasks(served: Served, worker: Stream):
    served.enqueue("o:beat")
    task = worker.task("o:beat")
    ack = worker.beat(task, {"id": "999", "claim": "999"}, extend=30)
    assert ack["lost"] == [{"task_id": "999", "claim": "999"}]
    assert 0 < ack["session_seconds"] <= 30
    assert "lost" not in worker.beat()
    assert "refusals" not in worker.end(done(task))


@pytest.mark.promise("B50")
def test_running_task_can_be_canceled(served: Served, worker: Stream):
    job = served.enqueue("o:cancel")
    task = worker.task("o:cancel")
    served.stage.cancel(job)
    told = worker.expect("cancel")
    assert (told["task"], told["reason"]) == (ref(task), "REASON_CANCELLED")
    assert "refusals" not in worker.end(result(task, cancelled={}))
    assert served.stage.state(job) == "cancelled"


def test_task_too_large_for_the_client_is_postponed_with_an_error_code(served: Served, worker: Stream):
    small = worker.client.stream(served.where)
    small.hello(token=TOKENS["all"], max_message_bytes=65536)
    job = served.enqueue("o:large", '{"x": "' + "y" * 70_000 + '"}')
    assert small.tasks(small.ready("o:large")) == [], "an empty answer, and the stream continues"
    row = served.stage.wait_state(job, "scheduled")
    assert (row["attempts"], row["error_code"]) == (0, "MESSAGE_TOO_LARGE"), row
    assert "number" in small.beat()
    served.stage.cancel(job)


def test_progress_is_shown_while_a_task_runs_and_recorded_with_its_outcome(served: Served, worker: Stream):
    job = served.enqueue("o:progress")
    task = worker.task("o:progress")
    for fraction, note in ((0.1, "begins"), ("NaN", "a\0b"), (0.5, "half")):
        worker.send(progress={"task": ref(task), "fraction": fraction, "note": note, "data": text(b'{"n": 1}')})
    worker.send(progress={"task": {"task_id": job, "claim": 999}, "fraction": 0.9, "note": "of another claim"})
    shown = "SELECT progress FROM jobherd.progress WHERE job = %s AND progress ->> 'note' = 'half'"
    served.stage.wait(lambda: served.stage.run(shown, job), "the progress of the task")
    worker.send(progress={"task": ref(task), "fraction": 2, "note": "nearly", "data": text(b"{")})
    worker.end(done(task))
    last = served.stage.call("SELECT progress FROM jobherd.history WHERE id = %s", job)
    assert last == {"fraction": 1.0, "note": "nearly"}
