"""Audit entries about logins, logouts and wrong tokens. A flood of wrong tokens causes only a few entries."""

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


def test_logins_logouts_and_wrong_tokens_get_audit_entries(database):
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


def test_role_jobherd_work_can_write_audit_entries_about_logins_only(database):
    """Regression: the role must not call note_audit, so logins with a view token had no audit entry."""
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


def test_flood_of_wrong_tokens_causes_few_entries_that_count_all_of_them(database):
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


def test_unreachable_database_does_not_change_which_logins_succeed():
    app = application("host=/nowhere/at/all dbname=jobs", operate_tokens=[OPERATE])
    with Page(app) as page:
        assert page.act_at("/login", "/login", token="wrong-0123456789abcdef").status_code == 403
        assert page.act_at("/login", "/login", token=OPERATE).status_code == 303


def test_counted_wrong_tokens_get_an_entry_when_their_period_ends(database):
    app = application(database)

    async def twice():
        door, somebody = AccessLog(app.state.database), SimpleNamespace(client=None)
        door.refused(somebody)
        door.refused(somebody)
        door._timers["refuse login", "?"]._run()  # the period ends
        await door._writing
        await app.state.database.close()

    finish(twice())
    assert [target for _, _, target in send(database, NOTES)] == [{"address": "?"}, {"address": "?", "times": 1}]
