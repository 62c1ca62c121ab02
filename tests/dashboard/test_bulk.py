"""Bulk actions: they run in slices and without a viewer, affect each job once, can be stopped, and are audited."""

from __future__ import annotations

import asyncio
import json
import time

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.dashboard import application, bulk
from jobherd.workers.dashboard.bulk import Runner
from jobherd.workers.dashboard.database import Database
from tests.cli.rows import child, claim, past, send, supervisor
from tests.dashboard.support import LIMIT, Page, finish


def ended(dsn, number):
    """Wait until a bulk action has ended, and return its row."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        [row] = send(
            dsn,
            "SELECT done, refused, stopped_by, error, ended_at IS NOT NULL, expected FROM jobherd.bulks WHERE id = %s",
            number,
        )
        if row[4]:
            return row
    raise AssertionError(f"it has not ended: {row}")


def begun(page, **fields):
    """Start a bulk action and return its number."""
    answer = page.act("/jobs/action", **fields)
    assert answer.status_code == 303, answer.text
    return int(answer.headers["location"].rsplit("/", 1)[1])


def states(dsn):
    return dict(send(dsn, "SELECT state, count(*) FROM jobherd.jobs GROUP BY state"))


def test_bulk_retry_affects_only_matching_jobs_and_is_audited(page, database, monkeypatch):
    monkeypatch.setattr(bulk, "SLICE", 50)
    past(database, "failed", many=320)
    past(database, "completed", many=40)
    past(database, "failed", many=30, kind="other:one")
    number = begun(page, action="retry", all="1", state="failed", kind="mail:receipt", reason="mended")
    assert ended(database, number) == (320, {}, None, None, True, 320)
    assert states(database) == {"ready": 320, "completed": 40, "failed": 30}
    text = page.get(f"/jobs/bulk/{number}").text
    assert "320 of 320" in text
    assert "mended" in text
    noted = send(database, "SELECT actor, action, target, reason FROM jobherd.audit ORDER BY id")
    assert [(actor, action, reason) for actor, action, _, reason in noted] == [
        ("dashboard", "bulk retry", "mended"),
        ("dashboard", "bulk retry done", "mended"),
    ]
    assert noted[0][2]["expected"] == noted[1][2]["done"] == 320


def test_bulk_action_affects_only_the_ticked_jobs(page, database):
    [(first,), (second,), (third,)] = send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 3)")
    number = begun(page, action="cancel", id=[first, second, third])
    assert ended(database, number)[:2] == (3, {})
    assert states(database) == {"cancelled": 3}
    number = begun(page, action="delete", id=[first, second])
    assert ended(database, number)[:2] == (2, {})
    assert states(database) == {"cancelled": 1}


def test_bulk_actions_change_the_priority_and_time_of_waiting_jobs(page, database):
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 5)")
    assert ended(database, begun(page, action="reprioritize", all="1", value="-3"))[:2] == (5, {})
    assert send(database, "SELECT DISTINCT priority FROM jobherd.ready") == [(-3,)]
    assert ended(database, begun(page, action="reschedule", all="1", value="2h"))[:2] == (5, {})
    assert states(database) == {"scheduled": 5}
    assert ended(database, begun(page, action="reschedule", all="1", value="now", state="scheduled"))[:2] == (5, {})
    assert states(database) == {"ready": 5}


def add(dsn, action, ids, **more):
    """Insert a bulk action that no process runs yet, and return its number."""
    row = {
        "value": None,
        "actor": "test",
        "reason": None,
        "expected": len(ids),
        "at_least": False,
        "reached": max(ids) + 1,
    }
    row |= {"action": action, "wanted": json.dumps({"ids": ids})} | more
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.load("dashboard/add_bulk"), row).fetchone()[0]


async def run(dsn, number, runners=1):
    """Run a bulk action with several runners at once, as several processes would."""
    databases = [Database(dsn) for _ in range(runners)]
    working = [Runner(database) for database in databases]
    for runner in working:
        runner.take(number)
    await asyncio.gather(*(task for runner in working for task in list(runner._tasks.values())))
    for database in databases:
        await database.close()


def test_bulk_action_skips_jobs_whose_state_has_changed_and_counts_them(database):
    waits = send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 2)")
    done, failed = past(database, "completed"), past(database, "failed")
    runs = claim(database, child(database, supervisor(database)))
    ids = [waits[0][0], waits[1][0], done, failed, 10**9]
    number = add(database, "cancel", ids)
    finish(run(database, number))
    assert ended(database, number)[:2] == (2, {"was completed": 1, "was failed": 1, "gone": 1})
    assert send(database, "SELECT job FROM jobherd.cancels") == [(runs,)]
    number = add(database, "reprioritize", [runs, failed], value="4")
    finish(run(database, number))
    assert ended(database, number)[:2] == (0, {"running": 1, "failed": 1})


def test_concurrent_runners_process_each_job_once(database, monkeypatch):
    """A second runner starts if a process is wrongly considered dead.

    Each slice is one transaction that names the position it has read.
    """
    monkeypatch.setattr(bulk, "SLICE", 7)
    last = past(database, "failed", many=200)
    number = add(database, "retry", list(range(last - 199, last + 1)))
    finish(run(database, number, runners=3))
    assert ended(database, number)[:2] == (200, {})
    assert send(database, "SELECT count(*), count(DISTINCT id) FROM jobherd.ready") == [(200, 200)]
    assert send(database, "SELECT count(*) FROM jobherd.attempts") == [(200,)]
    assert send(database, "SELECT count(*) FROM jobherd.audit WHERE action LIKE 'bulk retry done'") == [(1,)]


def test_next_process_continues_an_abandoned_bulk_action(database):
    last = past(database, "failed", many=10)
    number = add(database, "retry", list(range(last - 9, last + 1)))
    with Page(application(database)) as page:
        page.get("/jobs")
        assert send(database, "SELECT done FROM jobherd.bulks") == [(0,)], "another process may still run it"
    send(database, "UPDATE jobherd.bulks SET moved_at = moved_at - interval '1 min'")
    with Page(application(database)):
        assert ended(database, number)[0] == 10


def test_stopped_bulk_action_changes_no_more_jobs(page, database):
    last = past(database, "failed", many=10)
    number = add(database, "retry", list(range(last - 9, last + 1)))
    answer = page.act(f"/jobs/bulk/{number}/action")
    assert answer.status_code == 303
    assert ended(database, number)[:3] == (0, {}, "dashboard")
    assert states(database) == {"failed": 10}
    assert "Stopped" in page.get(f"/jobs/bulk/{number}").text
    assert send(database, "SELECT action FROM jobherd.audit ORDER BY id DESC LIMIT 1") == [("bulk retry stopped",)]
    assert "It had ended already" in page.act(f"/jobs/bulk/{number}/action", follow=True).text


def test_slices_shrink_after_a_collision_and_grow_again(database, monkeypatch):
    """Otherwise, after a short lock the rest of a million jobs would be moved a few at a time."""
    monkeypatch.setattr(bulk, "SLICE", 16)
    last = past(database, "failed", many=60)
    number = add(database, "retry", list(range(last - 59, last + 1)))
    slices = []
    act = Database.act

    async def acting(at, name, parameters=None):
        if name == "dashboard/run_bulk_slice":
            slices.append(len(parameters["ids"]))
            if len(slices) <= 3:
                raise psycopg.errors.DeadlockDetected
        return await act(at, name, parameters)

    monkeypatch.setattr(Database, "act", acting)
    finish(run(database, number))
    assert ended(database, number)[0] == 60
    assert slices == [16, 8, 4, 2, 4, 8, 16, 16, 14]


def test_bulk_action_ignores_jobs_enqueued_after_it_was_requested(page, database, monkeypatch):
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 3)")
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "take", lambda *_: None)  # the test runs it later
        number = begun(page, action="cancel", all="1", state="ready")
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 2)")
    finish(run(database, number))
    assert ended(database, number)[0] == 3
    assert states(database) == {"cancelled": 3, "ready": 2}


def test_database_error_ends_the_bulk_action_with_a_message(database):
    number = add(
        database, "reschedule", [send(database, "SELECT jobherd.enqueue('a:b', '{}')")[0][0]], value="infinity"
    )
    finish(run(database, number))
    done, _, _, error, _, _ = ended(database, number)
    assert done == 0
    assert "run_at" in error


def test_log_of_a_database_error_does_not_contain_the_payload(database, caplog):
    """PostgreSQL quotes the whole row that it rejects, including the payload."""
    job = send(database, """SELECT jobherd.enqueue('a:b', '{"password": "hunter2"}')""")[0][0]
    send(database, "SELECT jobherd.cancel(%s)", job)
    send(database, "ALTER TABLE jobherd.ready ADD CONSTRAINT mine CHECK (kind <> 'a:b')")
    number = add(database, "retry", [job])
    finish(run(database, number))
    assert "mine" in ended(database, number)[3]
    assert "CheckViolation" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("path", ["/jobs/bulk/999999"])
def test_missing_bulk_action_is_not_found(page, path):
    assert page.get(path).status_code == 404
