"""Finding and ending the database sessions of dead processes.

Also by roles that must not end them, and by login roles that switch to another role.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.queue import Queue

OWNER, LOGIN, OTHER = "t_end_owner", "t_end_login", "t_end_other"


@pytest.fixture
def logins(database):
    """Provide a DSN for each login role.

    LOGIN switches to the role OWNER. OTHER is only a member of that role, and sees all sessions.
    """
    with psycopg.connect(database, autocommit=True) as connection:

        def run(*statements):
            for statement in statements:
                connection.execute(statement)

        run(*(f"DROP ROLE IF EXISTS {role}" for role in (LOGIN, OTHER, OWNER)))
        run(f"CREATE ROLE {OWNER} IN ROLE jobherd_work", f"CREATE ROLE {LOGIN} LOGIN NOINHERIT IN ROLE {OWNER}")
        run(f"ALTER ROLE {LOGIN} SET role = '{OWNER}'", f"CREATE ROLE {OTHER} LOGIN IN ROLE {OWNER}, pg_monitor")
        yield {name: make_conninfo(database, user=name) for name in (LOGIN, OTHER)}
        run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename IN ('{LOGIN}', '{OTHER}')")
        run(*(f"DROP ROLE {role}" for role in (LOGIN, OTHER, OWNER)))


def transaction(dsn, child, job):
    """Return a session with an open transaction of the child's job."""
    connection = psycopg.connect(dsn)
    child.queue.opened.append(connection)
    connection.execute(child.queue.text("settle/register_transaction_session"), {"child": child.id})
    connection.commit()
    connection.execute(child.queue.text("settle/lock_claim"), {"child": child.id, "token": job.token, "job": job.id})
    return connection


def ended(queue, child):
    return queue.connection.execute(
        queue.text("recover/terminate_child_sessions"),
        {"supervisor": child.supervisor, "incarnation": child.incarnation},
    ).fetchone()


def test_login_role_that_switches_to_another_role_can_register_and_end_sessions(logins):
    with Queue(logins[LOGIN]) as queue:
        assert queue.run("SELECT current_user, session_user") == [(OWNER, LOGIN)]
        child = queue.child()
        assert queue.run("SELECT backend_started IS NOT NULL FROM jobherd.children") == [(True,)]
        assert ended(queue, child) == (1, 0)
        while ended(queue, child) != (0, 0):
            pass
        with pytest.raises(psycopg.OperationalError):
            child.connection.execute("SELECT 1")
        assert queue.run("SELECT current_user, session_user") == [(OWNER, LOGIN)], "the role is restored"


def test_role_that_must_not_end_a_session_reports_it_and_can_release_its_jobs(database):
    with Queue(database) as queue, psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS t_plain")
        connection.execute("CREATE ROLE t_plain LOGIN IN ROLE jobherd_work")
        try:
            connection.execute("REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC")
            with Queue(make_conninfo(database, user="t_plain")) as plain:
                job = queue.enqueue("a:b")
                child = plain.child()
                [claimed] = child.claim(1)
                assert ended(plain, child) == (1, 1), "the session exists, and the role must not end it"
                child.connection.close()
                while ended(plain, child) != (0, 0):
                    pass
                assert child.release() == [claimed.id] == [job]
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 't_plain'"
            )
            connection.execute("GRANT EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) TO PUBLIC")
            connection.execute("DROP ROLE t_plain")


def test_session_that_cannot_be_ended_blocks_reclaiming_only_of_its_own_job(logins):
    """The reclaiming login sees the session of a dead supervisor's job transaction, but must not end it."""
    with Queue(logins[LOGIN]) as queue, Queue(logins[OTHER]) as other:
        held, free = (queue.enqueue("a:b") for _ in range(2))
        dead = queue.supervisor()
        first, second = dead.child(), dead.child()
        [one], [two] = first.claim(1), second.claim(1)
        assert [one.id, two.id] == [held, free]
        open_ = transaction(logins[LOGIN], first, one)
        reaper = other.supervisor()
        assert reaper.reclaim(dead=[dead.id]) == (1, 1)
        assert other.states([held, free]) == ["running", "retrying"]
        assert other.orphans() == [], "the open transaction locks the job"
        open_.close()
        while not other.orphans():
            pass
        assert other.states([held, free]) == ["retrying", "retrying"]


def test_session_whose_process_id_was_reused_counts_as_gone(database):
    with Queue(database) as queue:
        child = queue.child()
        queue.run("UPDATE jobherd.children SET backend_started = backend_started - interval '1 s'")
        assert ended(queue, child) == (0, 0)
        assert child.connection.execute("SELECT 1").fetchone() == (1,)
