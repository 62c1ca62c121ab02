"""What is done to many jobs.

In slices, without a viewer, once and only once, to be stopped, and noted with its numbers.
"""

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
    """The row of a bulk, once it has ended."""
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
    """Begin something; the number of the bulk."""
    answer = page.act("/jobs/action", **fields)
    assert answer.status_code == 303, answer.text
    return int(answer.headers["location"].rsplit("/", 1)[1])


def states(dsn):
    return dict(send(dsn, "SELECT state, count(*) FROM jobherd.jobs GROUP BY state"))


def test_all_that_match_are_retried_and_nothing_else(page, database, monkeypatch):
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


def test_those_that_are_ticked_are_done_and_what_cannot_be_is_counted_with_why(page, database):
    [(first,), (second,), (third,)] = send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 3)")
    number = begun(page, action="cancel", id=[first, second, third])
    assert ended(database, number)[:2] == (3, {})
    assert states(database) == {"cancelled": 3}
    number = begun(page, action="delete", id=[first, second])
    assert ended(database, number)[:2] == (2, {})
    assert states(database) == {"cancelled": 1}


def test_priority_and_time_of_what_waits(page, database):
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 5)")
    assert ended(database, begun(page, action="reprioritize", all="1", value="-3"))[:2] == (5, {})
    assert send(database, "SELECT DISTINCT priority FROM jobherd.ready") == [(-3,)]
    assert ended(database, begun(page, action="reschedule", all="1", value="2h"))[:2] == (5, {})
    assert states(database) == {"scheduled": 5}
    assert ended(database, begun(page, action="reschedule", all="1", value="now", state="scheduled"))[:2] == (5, {})
    assert states(database) == {"ready": 5}


def add(dsn, action, ids, **more):
    """A bulk that nobody works on yet."""
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
    """Work on a bulk with so many processes at once."""
    databases = [Database(dsn) for _ in range(runners)]
    working = [Runner(database) for database in databases]
    for runner in working:
        runner.take(number)
    await asyncio.gather(*(task for runner in working for task in list(runner._tasks.values())))
    for database in databases:
        await database.close()


def test_what_has_changed_meanwhile_is_refused_and_counted(database):
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


def test_two_that_work_on_the_same_do_nothing_twice(database, monkeypatch):
    """As after a child that was believed dead.

    Each slice is one transaction that names where it stood.
    """
    monkeypatch.setattr(bulk, "SLICE", 7)
    last = past(database, "failed", many=200)
    number = add(database, "retry", list(range(last - 199, last + 1)))
    finish(run(database, number, runners=3))
    assert ended(database, number)[:2] == (200, {})
    assert send(database, "SELECT count(*), count(DISTINCT id) FROM jobherd.ready") == [(200, 200)]
    assert send(database, "SELECT count(*) FROM jobherd.attempts") == [(200,)]
    assert send(database, "SELECT count(*) FROM jobherd.audit WHERE action LIKE 'bulk retry done'") == [(1,)]


def test_one_that_was_left_behind_is_taken_up_by_the_next_process(database):
    last = past(database, "failed", many=10)
    number = add(database, "retry", list(range(last - 9, last + 1)))
    with Page(application(database)) as page:
        page.get("/jobs")
        assert send(database, "SELECT done FROM jobherd.bulks") == [(0,)], "somebody may still be at it"
    send(database, "UPDATE jobherd.bulks SET moved_at = moved_at - interval '1 min'")
    with Page(application(database)):
        assert ended(database, number)[0] == 10


def test_it_is_stopped_and_what_was_done_stays_done(page, database):
    last = past(database, "failed", many=10)
    number = add(database, "retry", list(range(last - 9, last + 1)))
    answer = page.act(f"/jobs/bulk/{number}/action")
    assert answer.status_code == 303
    assert ended(database, number)[:3] == (0, {}, "dashboard")
    assert states(database) == {"failed": 10}
    assert "Stopped" in page.get(f"/jobs/bulk/{number}").text
    assert send(database, "SELECT action FROM jobherd.audit ORDER BY id DESC LIMIT 1") == [("bulk retry stopped",)]
    assert "It had ended already" in page.act(f"/jobs/bulk/{number}/action", follow=True).text


def test_after_a_collision_its_slices_grow_again(database, monkeypatch):
    """Or a lock that somebody held for a moment has the rest of a million jobs moved a few at a time."""
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


def test_jobs_that_are_made_after_it_was_asked_for_are_left_alone(page, database, monkeypatch):
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 3)")
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "take", lambda *_: None)  # its turn comes later
        number = begun(page, action="cancel", all="1", state="ready")
    send(database, "SELECT jobherd.enqueue('a:b', '{}') FROM generate_series(1, 2)")
    finish(run(database, number))
    assert ended(database, number)[0] == 3
    assert states(database) == {"cancelled": 3, "ready": 2}


def test_what_the_database_refuses_ends_it_with_a_sentence(database):
    number = add(
        database, "reschedule", [send(database, "SELECT jobherd.enqueue('a:b', '{}')")[0][0]], value="infinity"
    )
    finish(run(database, number))
    done, _, _, error, _, _ = ended(database, number)
    assert done == 0
    assert "run_at" in error


def test_what_the_database_refuses_is_logged_without_the_job(database, caplog):
    """PostgreSQL quotes the whole row that it refuses, and the payload is in it."""
    job = send(database, """SELECT jobherd.enqueue('a:b', '{"password": "hunter2"}')""")[0][0]
    send(database, "SELECT jobherd.cancel(%s)", job)
    send(database, "ALTER TABLE jobherd.ready ADD CONSTRAINT mine CHECK (kind <> 'a:b')")
    number = add(database, "retry", [job])
    finish(run(database, number))
    assert "mine" in ended(database, number)[3]
    assert "CheckViolation" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("path", ["/jobs/bulk/999999"])
def test_one_that_is_not_there(page, path):
    assert page.get(path).status_code == 404
