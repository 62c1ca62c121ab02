"""A producer, a supervisor, a reader and an operator, each under the least role.

Each login is a member of one role.
"""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import Client
from jobherd.workers.dashboard import application
from tests.cli.shell import jobherd
from tests.dashboard.support import Page
from tests.support.herd import Herd

HANDLERS = """
from jobherd import Completed, handler

@handler("role:sum")
def total(numbers: list[int]) -> int:
    follow.enqueue(of=len(numbers))
    return sum(numbers)

@handler("role:follow")
def follow(of: int) -> None:
    print("of", of)

@handler("role:fail", max_attempts=1)
def fail() -> None:
    raise ValueError("no")
"""
LOGINS = {
    "t_enqueue": "jobherd_enqueue",
    "t_work": "jobherd_work",
    "t_read": "jobherd_read",
    "t_admin": "jobherd_admin",
}


@pytest.fixture
def logins(database):
    """Yield a DSN for each login."""
    with psycopg.connect(database, autocommit=True) as connection:
        for login, role in LOGINS.items():
            connection.execute(f"DROP ROLE IF EXISTS {login}")
            connection.execute(f"CREATE ROLE {login} LOGIN IN ROLE {role}")
    yield {login: psycopg.conninfo.make_conninfo(database, user=login) for login in LOGINS}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = ANY (%s)", [list(LOGINS)]
        )
        connection.execute(f"DROP ROLE {', '.join(LOGINS)}")


def page_notes(database):
    with psycopg.connect(database, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute("SELECT action FROM jobherd.audit WHERE action = 'retry'").fetchall()


@pytest.mark.timeout(600)  # a dozen processes on a busy machine
def test_each_login_can_do_the_work_of_its_role_and_no_more(logins, database, tmp_path):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with (
        Client(logins["t_enqueue"]) as producer,
        Client(logins["t_read"]) as reader,
        Herd(logins["t_work"], tmp_path) as herd,
    ):
        done = producer.enqueue("role:sum", {"numbers": [1, 2, 3]})
        failed = producer.enqueue("role:fail")
        later = producer.enqueue("role:sum", {"numbers": []}, delay="1h")
        assert len(producer.enqueue_many("role:sum", ({"numbers": [n]} for n in range(2500)))) == 2500
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.job(done)
        assert reader.wait(done, timeout="60s")["result"] == 6
        assert reader.wait(failed, timeout="60s")["state"] == "failed"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.cancel(later)

        listed = jobherd("jobs", "--json", "--kind", "role:fail", dsn=logins["t_read"])
        assert [job["id"] for job in json.loads(listed.out)] == [failed], listed
        for words in (("why", failed), ("doctor",)):
            answer = jobherd(*words, dsn=logins["t_read"])
            assert answer.code in {0, 1}, (words, answer)
            assert "permission denied" not in answer.err + answer.out, (words, answer)
        for words in (("cancel", later), ("pause", "mail")):
            refused = jobherd(*words, dsn=logins["t_read"])
            assert refused.code == 78, (words, refused)
            assert "permission denied" in refused.err
            assert "jobherd_admin to change" in refused.err
        for words in (("cancel", later), ("pause", "mail")):
            allowed = jobherd(*words, dsn=logins["t_admin"])
            assert "permission denied" not in allowed.err, (words, allowed)
        assert reader.job(later)["state"] == "cancelled"
        with Page(application(logins["t_read"])) as page:
            for path in ("/", "/jobs", f"/jobs/{done}", "/queues", "/kinds", "/fleet", "/audit"):
                shown = page.get(path)
                assert shown.status_code == 200, (path, shown.text[:500])
            page.act(f"/jobs/{failed}/action", do="retry")
            assert reader.job(failed)["state"] == "failed", "the dashboard cannot do what the database rejects"
        with Page(application(logins["t_admin"])) as page:
            page.act(f"/jobs/{failed}/action", do="retry")
            assert [row["action"] for row in page_notes(database)] == ["retry"]
        assert not [
            event.line
            for event in herd.events
            if "permission denied" in event.line or "InsufficientPrivilege" in event.line
        ]
        assert herd.stop() == 0
    assert not [
        event.line
        for event in herd.events
        if "permission denied" in event.line or "InsufficientPrivilege" in event.line
    ]


def test_run_under_a_role_that_may_not_run_a_supervisor_exits_with_78_and_the_grant(logins, tmp_path):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    ran = jobherd("run", "--handlers", tmp_path, "--until-empty", dsn=logins["t_read"], JOBHERD_HTTP="off")
    assert ran.code == 78
    assert ran.err.splitlines()[-1] == (
        "jobherd: the role t_read may not run a supervisor in the schema 'jobherd': run `GRANT jobherd_work TO t_read` "
        "as a role that may grant it, or name another role in --dsn or JOBHERD_DSN"
    )
