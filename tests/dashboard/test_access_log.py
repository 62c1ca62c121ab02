"""Who logs in, who logs out and who is turned away stands in the audit, and a flood of guesses is a few notes."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd.workers.dashboard import application
from jobherd.workers.dashboard.access_log import ADDRESSES, AccessLog
from tests.cli.rows import send
from tests.dashboard.support import Page, finish

OPERATE = "operate-0123456789abcdef"
NOTES = "SELECT actor, action, target FROM jobherd.audit ORDER BY id"


def test_who_comes_in_and_who_is_turned_away_is_noted(database):
    app = application(database, operate_tokens=[f"alice={OPERATE}"])
    with Page(app, address="10.1.2.3", host="jobs.example") as page:
        assert page.act_at("/login", "/login", token="wrong-0123456789abcdef").status_code == 403
        for _ in range(8):
            assert page.get("/jobs", headers={"Authorization": "Bearer wrong-0123456789abcdef"}).status_code == 401
        assert page.act_at("/login", "/login", token=OPERATE).status_code == 303
        assert page.act_at("/queues", "/logout").status_code == 303
    address = {"address": "10.1.2.3"}
    assert send(database, NOTES) == [
        ("dashboard:unknown", "refuse login", address),
        ("dashboard:alice", "log in", address | {"may": "operate"}),
        ("dashboard:alice", "log out", address),
        ("dashboard:unknown", "refuse login", address | {"times": 8}),
    ]
    with Page(application(database)) as page:
        text = page.get("/audit").text
    assert "10.1.2.3" in text
    assert "dashboard:alice" in text


def test_a_dashboard_that_only_shows_has_its_visits_in_the_audit_and_can_enter_nothing_else(database):
    """Its role, jobherd_work, may not call note_audit: no login of a view token was noted."""
    as_work = make_conninfo(database, options="-c role=jobherd_work")
    with Page(application(as_work, view_tokens=[f"bob={OPERATE}"])) as page:
        assert page.act_at("/login", "/login", token="wrong-0123456789abcdef").status_code == 403
        assert page.act_at("/login", "/login", token=OPERATE).status_code == 303
        assert page.act_at("/queues", "/logout").status_code == 303
    assert [note[:2] for note in send(database, NOTES)] == [
        ("dashboard:unknown", "refuse login"),
        ("dashboard:bob", "log in"),
        ("dashboard:bob", "log out"),
    ]
    for actor, action in (("dashboard:bob", "delete"), ("anna", "log in"), (None, "log in"), ("dashboard:bob", None)):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is not a visit"):
            send(as_work, "SELECT jobherd.note_visit(%s, %s, '{}')", actor, action)


def test_a_flood_of_guesses_from_everywhere_is_bounded_and_all_are_counted(database):
    app = application(database)

    async def flood():
        door = AccessLog(app.state.database)
        for number in range(5000):
            door.refused(SimpleNamespace(client=SimpleNamespace(host=f"10.0.{number // 250}.{number % 250}")))
        await door._writing
        await door.close()
        await app.state.database.close()

    finish(flood())
    notes = send(database, NOTES)
    assert len(notes) == ADDRESSES + 2
    assert sum(target.get("times", 1) for _, _, target in notes) == 5000


def test_a_database_that_is_away_turns_nobody_away_and_nobody_in():
    app = application("host=/nowhere/at/all dbname=jobs", operate_tokens=[OPERATE])
    with Page(app) as page:
        assert page.act_at("/login", "/login", token="wrong-0123456789abcdef").status_code == 403
        assert page.act_at("/login", "/login", token=OPERATE).status_code == 303


def test_what_is_counted_is_noted_when_its_time_is_over(database):
    app = application(database)

    async def twice():
        door, somebody = AccessLog(app.state.database), SimpleNamespace(client=None)
        door.refused(somebody)
        door.refused(somebody)
        door._timers["refuse login", "?"]._run()  # its time has come
        await door._writing
        await app.state.database.close()

    finish(twice())
    assert [target for _, _, target in send(database, NOTES)] == [{"address": "?"}, {"address": "?", "times": 1}]
