"""`why` on real rows: it explains each state and names what a job waits for."""

from __future__ import annotations

import re

import pytest

from tests.cli.rows import child, claim, past, remote_worker, send, supervisor
from tests.cli.shell import jobherd
from tests.sql.test_after import end, resolve
from tests.sql.test_flows import start
from tests.support.queue import Queue


def why(dsn: str, job: int) -> str:
    answer = jobherd("why", job, dsn=dsn, COLUMNS="200")
    assert answer.code == 0, answer
    assert answer.err == ""
    return answer.out


def add(dsn: str, *words: object) -> int:
    return int(jobherd("enqueue", "mail:receipt", "{}", *words, dsn=dsn).out)


def test_why_explains_every_state(database):
    late = add(database, "--delay", "3h")
    first = add(database)
    assert "waiting: no supervisor with workers holds a lease" in why(database, first)
    worker = child(database, supervisor(database))
    assert "no worker has ever declared the kind mail:receipt" in why(database, first)
    assert claim(database, worker) == first
    assert "on alpha in process 78 (worker 1): attempt 1 of 5" in why(database, first)
    assert "scheduled: it is not due before" in why(database, late)
    for state, says in {
        "completed": "completed at",
        "failed": "it broke",
        "cancelled": "cancelled at",
        "expired": "expired at",
    }.items():
        assert says in why(database, past(database, state))


def test_why_names_the_jobs_that_a_blocked_job_waits_for(database):
    first, second = add(database), add(database)
    later = add(database, "--after", f"{first},{second}", "--when", "ended")
    found = why(database, later)
    assert f"blocked: it waits for job {first} to end, which is ready (kind mail:receipt)" in found
    assert f"blocked: it waits for job {second} to end" in found
    assert f"jobherd why {first}" in found
    assert [row["id"] for row in jobherd("jobs", "--state", "blocked", "--json", dsn=database).json] == [later]
    answer = jobherd("retry", later, dsn=database)
    assert (answer.code, "waits for other jobs" in answer.out) == (1, True)
    assert (
        jobherd("enqueue", "a:b", "--when", "failed", dsn=database)
        .err.strip()
        .endswith("when requires after, the jobs that must end first")
    )
    for word in ("x", "1,,2", ""):
        assert jobherd("enqueue", "a:b", "--after", word, dsn=database).code == 2


def test_why_names_the_retry_of_the_flow_for_a_failed_job_of_an_ended_flow(database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]})
        job = end(queue, "failed")
        assert f"it is node fetch of flow {flow}, test, which is open" in (found := why(database, job))
        assert "jobherd flow retry" not in found
        resolve(queue)
    found = why(database, job)
    assert f"it is node fetch of flow {flow}, test, which is failed" in found
    assert f"jobherd flow retry {flow}   to run again what failed or was canceled in its flow" in found
    assert f"jobherd retry {job}   to run only this job: flow {flow} stays failed" in found


def test_why_names_the_signal_that_a_suspended_job_waits_for(database):
    own, other = (send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1d\"}')")[0][0] for _ in range(2))
    send(
        database,
        "INSERT INTO jobherd.waits (job, name, topic, until) VALUES (%s, 'ok', %s, NULL), (%s, 'n', 'a/b', now() + interval '1 hour')",
        own, f"job/{own}/ok", other,
    )  # fmt: skip
    text = why(database, own)
    assert "suspended: it waits for the signal 'ok', without a timeout" in text
    assert f"jobherd signal ok --job {own}" in text
    text = why(database, other)
    assert "suspended: it waits for the signal 'n' of the topic 'a/b', until" in text
    assert "jobherd signal a/b" in text


def test_why_names_the_child_jobs_that_a_suspended_job_waits_for(database):
    job = send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1d\"}')")[0][0]
    nodes = '[{"node": "c:d", "kind": "c:d", "item": 0, "payloads": ["{}", "{}", "{}"]}]'
    flow = send(database, "SELECT jobherd.start_flow('spawn a:b', %s)", nodes)[0][0]
    send(
        database,
        "UPDATE jobherd.flows SET step = 'labels', parent_id = %s, pending = 2, completed = 1",
        job,
    )
    send(
        database,
        "INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (%s, 'gather:labels', %s, %s)",
        job, f"flow/{flow}", flow,
    )  # fmt: skip
    text = why(database, job)
    assert "suspended: it waits for 3 child jobs of step 'labels', of which 1 has ended" in text
    assert f"jobherd flow tree {flow}" in text
    send(database, "UPDATE jobherd.flows SET pending = 0, completed = 3")
    assert "its child jobs have ended, and a maintenance process is about to wake it" in why(database, job)


def test_why_names_the_remote_worker_of_a_job_and_its_gateway(database):
    worker, job = remote_worker(database, supervisor(database, host="beta")), add(database)
    assert "waiting: no supervisor with workers" not in why(database, job), "a remote worker may run it"
    assert claim(database, worker) == job
    assert "by remote worker gpu-1 via beta: attempt 1 of 5" in why(database, job)
    assert re.search(r"runs on\s+gpu-1 via beta", jobherd("job", job, dsn=database).out)
    answer = jobherd("stack", job, dsn=database)
    assert answer.code != 0
    assert f"job {job} runs on the remote worker gpu-1 via beta, whose process cannot be inspected" in answer.err
    assert f"`pgrep -f '#{job}$'` finds the process" in answer.err


def flooded(dsn: str) -> tuple[int, int]:
    """Add 20 jobs to `mail`, then two to `default`, while the only worker is busy. Return the supervisor and last job."""
    boss = supervisor(dsn, lease=3600)
    send(
        dsn,
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) VALUES ('mail:receipt', 'default', 0, 5, 3, 9, 9)",
    )
    worker = child(dsn, boss)
    enqueue = "SELECT jobherd.enqueue('mail:receipt', '{}', jsonb_build_object('queue', %s::text)) FROM generate_series(1, %s) ORDER BY 1"
    mails = send(dsn, enqueue, "mail", 21)
    assert claim(dsn, worker) == mails[0][0]
    return boss, send(dsn, enqueue, "default", 2)[-1][0]


def test_with_turns_why_counts_only_earlier_jobs_of_the_same_queue(database):
    boss, job = flooded(database)
    send(
        database,
        'UPDATE jobherd.supervisors SET facts = \'{"queues": [], "turns": true, "tiers": []}\' WHERE id = %s',
        boss,
    )
    said = why(database, job)
    assert "waiting: a job of queue default is ahead of it, and the only worker is busy" in said
    assert "the workers take turns between 2 queues that hold jobs, default among them" in said
    assert "jobherd run --queue-weights default=3 ..." in said
    send(database, "SELECT jobherd.pause('mail')")
    assert "turns" not in why(database, job), "a paused queue takes no turns"


@pytest.mark.parametrize("queues", ["[]", '["mail", "default"]', '["m*", "default"]'])
def test_in_strict_order_why_counts_earlier_jobs_of_all_queues(database, queues):
    boss, job = flooded(database)
    tiers = [*range(queues.count(",") + 1)] if queues != "[]" else []
    facts = f'{{"queues": {queues}, "turns": false, "tiers": {tiers}}}'
    send(database, "UPDATE jobherd.supervisors SET facts = %s::jsonb WHERE id = %s", facts, boss)
    said = why(database, job)
    assert (
        "waiting: a job of queue default and 20 jobs of queue mail are ahead of it, and the only worker is busy" in said
    )
    assert "jobherd run --queue-order turns ..." in said
    # A supervisor whose workers take turns reaches the job first.
    other = supervisor(database, host="beta", lease=3600)
    send(
        database,
        'UPDATE jobherd.supervisors SET facts = \'{"queues": [], "turns": true, "tiers": []}\' WHERE id = %s',
        other,
    )
    assert "waiting: a job of queue default is ahead of it" in why(database, job)


def test_why_counts_jobs_of_an_earlier_tier_but_not_of_a_later_one(database):
    boss, job = flooded(database)
    for numbers, says in (
        ([5, 0], "waiting: a job of queue default is ahead of it"),
        ([-5, 0], "and 20 jobs of queue mail are ahead of it"),
    ):
        facts = f'{{"queues": ["mail", "default"], "turns": true, "tiers": {numbers}}}'
        send(database, "UPDATE jobherd.supervisors SET facts = %s::jsonb WHERE id = %s", facts, boss)
        assert says in why(database, job)


def test_why_names_actor_time_and_reason_of_a_pause_and_the_command_that_resumes(database):
    job = add(database)
    assert jobherd("pause", "default", "--by", "ann", "--reason", "moving house", dsn=database).code == 0
    said = why(database, job)
    assert "its queue default was paused by ann at" in said
    assert "reason: moving house" in said
    assert jobherd(*said.splitlines()[-1].split("   ")[0].split()[1:], dsn=database).code == 0, (
        "the command in the last line must work"
    )
    assert "paused" not in why(database, job)


def test_why_fits_80_columns_and_has_the_same_contents_as_json(database):
    send(database, "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', 'media')")
    (job,) = send(database, "SELECT max(id) FROM jobherd.ready")[0]
    send(database, "SELECT jobherd.pause('media', %s)", "a reason that is rather long, " * 6)
    answer = jobherd("why", job, dsn=database, COLUMNS="80")
    assert max(map(len, answer.lines)) <= 80
    told = jobherd("why", job, "--json", dsn=database).json
    assert (told["id"], told["state"], told["before"]) == (job, "ready", [])
    assert told["now"][0].startswith("waiting: its queue media was paused")


def test_why_reports_a_missing_job(database):
    answer = jobherd("why", 4711, dsn=database)
    assert answer.code == 1
    assert "job 4711 not found" in answer.err
