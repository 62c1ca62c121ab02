"""Privileges of each role in the database.

The tests try every kind of statement on every object of the schema as each role. They read the expected privileges
from the two tables of sql/queries/migrate/grant_roles.sql. An object that is missing there fails a test.
"""

from __future__ import annotations

import itertools
import re

import psycopg
import pytest
from psycopg import errors
from psycopg import sql as names

from jobherd import Client, sql
from jobherd.sql.drift import drift
from jobherd.sql.migrate import migrate, pending
from tests.support.postgres import Cluster
from tests.support.queue import Queue

ROLES = ("jobherd_enqueue", "jobherd_work", "jobherd_read", "jobherd_admin")
ROW = re.compile(r"^ +\('(\w+)', +'\{([^}]*)\}'", re.MULTILINE)
EVERYBODY = re.compile(r"p\.proname IN \(([^)]*)\)")


def written() -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Return each object's privileges, in the order of ROLES, and the functions that every role may call."""
    text = sql.load("migrate/grant_roles")
    rows = {name: tuple(part.strip() for part in may.split(",")) for name, may in ROW.findall(text)}
    open_to_all = EVERYBODY.search(text)
    assert open_to_all
    return rows, frozenset(re.findall(r"'(\w+)'", open_to_all[1]))


MAY, EVERYBODYS = written()


@pytest.fixture
def connection(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def ask(connection, statement, *parameters):
    return connection.execute(statement, parameters or None).fetchall()


def functions(connection):
    """Return the callable functions: the name of each, and a call of it with NULL for every argument."""
    found = ask(
        connection,
        """SELECT p.proname, format('SELECT jobherd.%I(%s)', p.proname,
                  (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n)))
             FROM pg_proc p WHERE p.pronamespace = 'jobherd'::regnamespace AND p.prorettype <> 'trigger'::regtype""",
    )
    return dict(found)


def relations(connection):
    """Return tables, views and sequences by name, without the partitions that Jobherd creates and drops."""
    return dict(
        ask(
            connection,
            """SELECT c.relname, c.relkind FROM pg_class c
                WHERE c.relnamespace = 'jobherd'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
                  AND (NOT c.relispartition OR c.relname LIKE '%\\_default')
                  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i' AND c.relkind = 'S')""",
        )
    )


def is_allowed(connection, role, statement):
    """Return whether a role may run the statement.

    EXPLAIN checks the privileges as the statement itself would, and changes nothing.
    """
    with connection.transaction(force_rollback=True):
        connection.execute(names.SQL("SET LOCAL ROLE {}").format(names.Identifier(role)))
        try:
            with connection.transaction(force_rollback=True):
                connection.execute(statement)
        except errors.InsufficientPrivilege:
            return False
        except errors.DataError:
            return True  # the planner called an immutable function, which rejects nulls
    return True


def test_every_object_of_the_schema_is_listed_in_grant_roles(connection):
    placed = set(MAY) | EVERYBODYS
    there = set(relations(connection)) | set(functions(connection)) - {
        "grant_tenant",
        "revoke_tenant",
        "let_enqueue",
        "leave_first_range",
    }
    assert there - placed == set(), "list its privileges in sql/queries/migrate/grant_roles.sql"
    assert placed - there == set(), "listed in grant_roles.sql, but not in the schema"


def test_each_role_has_exactly_the_privileges_in_grant_roles(connection):
    kinds = relations(connection)
    tried = 0
    for name, kind in kinds.items():
        column = ask(
            connection,
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attidentity = '' DESC, attnum LIMIT 1",
            f"jobherd.{name}",
        )[0][0]
        statements = {
            "r": f"EXPLAIN SELECT {'*' if kind != 'S' else 'last_value'} FROM jobherd.{name}",
            "a": f"EXPLAIN INSERT INTO jobherd.{name} DEFAULT VALUES",
            "w": f"EXPLAIN UPDATE jobherd.{name} SET {column} = DEFAULT",
            "d": f"EXPLAIN DELETE FROM jobherd.{name}",
            "t": f"TRUNCATE jobherd.{name} CASCADE",
            "l": f"COMMENT ON TABLE jobherd.{name} IS 'mine'",
        }
        if kind == "S":
            statements = {
                "r": statements["r"],
                "U": f"SELECT nextval('jobherd.{name}')",
                "w": f"SELECT setval('jobherd.{name}', 7)",
            }
        elif kind == "v":
            statements = {letter: statements[letter] for letter in (("r", "d") if name == "jobs" else ("r",))}
        for (role, may), (letter, statement) in itertools.product(
            zip(ROLES, MAY[name], strict=True), statements.items()
        ):
            some_columns = (role, letter) == ("jobherd_enqueue", "a") and name in {"ready", "scheduled"}
            assert is_allowed(connection, role, statement) == (letter in may or some_columns), f"{role}: {statement}"
            tried += 1
    for name, statement in functions(connection).items():
        may = MAY.get(name, ("X",) * 4 if name in EVERYBODYS else ("-",) * 4)
        for role, letter in zip(ROLES, may, strict=True):
            assert is_allowed(connection, role, f"EXPLAIN {statement}") == (letter == "X"), f"{role}: {statement}"
            tried += 1
    assert tried > 800


CALLS = {
    "enqueue": "SELECT jobherd.enqueue('a:b')",
    "enqueue later": """SELECT jobherd.enqueue('a:b', '{}', '{"delay": 60}')""",
    "enqueue bytes": "SELECT jobherd.enqueue_bytes('a:b', 'x')",
    "demand": """SELECT jobherd.demand(jobherd.enqueue('a:b'), '{"memory_mb": 9}')""",
    "cancel": "SELECT jobherd.cancel({job})",
    "retry": "SELECT jobherd.retry({past})",
    "delete": "SELECT jobherd.delete({past})",
    "pause": "SELECT jobherd.pause('mail')",
    "resume": "SELECT jobherd.resume('mail')",
    "limit": "SELECT jobherd.set_limit('mail', 3)",
    "limit each": "SELECT jobherd.limit_each('mail', 3), jobherd.limit_each_rate('mail', '3/s'), jobherd.fair('mail')",
    "reprioritize": "SELECT jobherd.reprioritize({job}, 4)",
    "reschedule": "SELECT jobherd.reschedule({job}, now() + interval '1 hour')",
    "retry edited": "SELECT jobherd.retry_edited({past}, '{{}}')",
    "order": "SELECT jobherd.send_fleet_command({supervisor}, 'report')",
    "read": "SELECT payload, result FROM jobherd.jobs",
    "audit": "SELECT * FROM jobherd.audit",
    "forge a note": "SELECT jobherd.note_audit('anna', 'delete')",
    "change a note": "UPDATE jobherd.audit SET actor = 'anna'",
    "partitions": "SELECT jobherd.keep_partitions(20)",
    "webhooks": "SELECT jobherd.enable_webhooks()",
    "past": "SELECT jobherd.count_past('1 hour', '1 second')",
    "wait": "SELECT jobherd.meet_settlements(ARRAY[{job}, {busy}]::bigint[])",
    "tenant": "SELECT jobherd.grant_tenant('jobherd_read', 'acme')",
    "schema": "CREATE TABLE jobherd.mine (a int)",
}
ENQUEUES = {"enqueue", "enqueue later", "enqueue bytes", "demand"}
OPERATES = {
    "cancel",
    "retry",
    "delete",
    "pause",
    "resume",
    "limit",
    "limit each",
    "reprioritize",
    "reschedule",
    "retry edited",
    "order",
    "forge a note",
}
SUCCEED = {
    "jobherd_enqueue": ENQUEUES,
    "jobherd_work": ENQUEUES | {"cancel", "retry", "read", "audit", "partitions", "webhooks", "past", "resume", "wait"},
    "jobherd_read": {"read", "audit", "wait"},
    "jobherd_admin": ENQUEUES | OPERATES | {"read", "audit", "wait"},
}


@pytest.mark.parametrize("tenants", [False, True], ids=["plain", "with row security"])
@pytest.mark.parametrize("role", ROLES)
def test_each_role_succeeds_with_exactly_the_calls_it_may_make(database, role, tenants):
    with Queue(database) as queue:
        child = queue.child()
        past = queue.enqueue_many("a:b", 1)[0]
        claimed = child.claim(1)
        child.settle(claimed[0].token, [past], "failed", error="no", code="NO")
        busy = queue.enqueue_many("a:b", 1)[0]
        assert child.claim(1)
        job = queue.enqueue_many("a:b", 1)[0]
        if tenants:
            queue.run("ALTER TABLE jobherd.ready ENABLE ROW LEVEL SECURITY")
            queue.run("ALTER TABLE jobherd.scheduled ENABLE ROW LEVEL SECURITY")
            queue.run("ALTER TABLE jobherd.history ENABLE ROW LEVEL SECURITY")
        given = {"job": job, "busy": busy, "past": past, "supervisor": child.supervisor}
        done = set()
        for name, statement in CALLS.items():
            if name == "cancel" and tenants and role in {"jobherd_enqueue", "jobherd_read"}:
                continue  # with row security these roles have no tenant: the call returns null and changes nothing
            if name == "retry" and tenants and role in {"jobherd_enqueue", "jobherd_read"}:
                continue
            text = (
                statement.format(**given)
                if "{job}" in statement or "{past}" in statement or "{supervisor}" in statement
                else statement
            )
            with queue.connection.transaction(force_rollback=True):
                queue.connection.execute(f"SET LOCAL ROLE {role}")
                try:
                    with queue.connection.transaction():
                        cursor = queue.connection.execute(text)
                        answer = cursor.fetchone()[0] if text.startswith("SELECT jobherd") else None
                except errors.InsufficientPrivilege:
                    continue
            done.add(name)
            if name in {"cancel", "retry", "delete", "retry edited", "reprioritize", "reschedule"}:
                assert answer is not None, f"{name} found no job"
        assert done == SUCCEED[role] - ({"cancel", "retry"} if tenants and role == "jobherd_read" else set())


def test_producer_role_can_read_job_ids_but_no_payloads(connection):
    connection.execute("SELECT jobherd.enqueue('a:b', '{\"card\": 4111}')")
    connection.execute("SET ROLE jobherd_enqueue")
    assert len(ask(connection, "SELECT id FROM jobherd.ready")) == 1
    for statement in (
        "SELECT payload FROM jobherd.ready",
        "SELECT * FROM jobherd.scheduled",
        "SELECT * FROM jobherd.jobs",
        "TABLE jobherd.history",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(connection, statement)


def test_security_definer_functions_set_their_search_path(connection):
    found = ask(
        connection,
        """SELECT p.oid::regprocedure::text, p.proconfig FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = 'jobherd' AND p.prosecdef""",
    )
    assert len(found) >= 7
    for called, settings in found:
        assert "search_path=pg_catalog, pg_temp" in (settings or []), called


def test_migration_by_a_user_who_cannot_create_roles_logs_them_and_succeeds(caplog):
    with Cluster() as own:
        with psycopg.connect(own.dsn(), autocommit=True) as connection:
            connection.execute("CREATE ROLE plain LOGIN")
            connection.execute("CREATE DATABASE theirs OWNER plain ENCODING 'UTF8' TEMPLATE template0")
        dsn = psycopg.conninfo.make_conninfo(own.dsn("theirs"), user="plain")
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert migrate(connection) > 0
            assert "jobherd_admin, jobherd_enqueue, jobherd_read, jobherd_work" in caplog.text
            assert "CREATE ROLE ... NOLOGIN" in caplog.text
            assert ask(connection, "SELECT jobherd.enqueue('a:b')")
            caplog.clear()
            assert migrate(connection) == 0
            assert not caplog.text, "a migration without pending steps logs nothing"
        with psycopg.connect(own.dsn(), autocommit=True) as connection:
            for role in ROLES:
                connection.execute(f"CREATE ROLE {role}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert migrate(connection, grant=True) == 0
            assert not caplog.text
            assert ask(connection, "SELECT has_table_privilege('jobherd_read', 'jobherd.jobs', 'SELECT')") == [(True,)]
            assert drift(connection) == []


def test_migrate_with_grant_revokes_other_privileges_and_leaves_no_drift(connection):
    connection.execute("GRANT UPDATE ON jobherd.audit TO jobherd_read")
    assert migrate(connection, grant=True) == 0
    assert ask(connection, "SELECT has_table_privilege('jobherd_read', 'jobherd.audit', 'UPDATE')") == [(False,)]
    assert drift(connection) == []


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_check_that_no_migration_is_pending(connection, role):
    connection.execute(names.SQL("SET ROLE {}").format(names.Identifier(role)))
    assert pending(connection) == 0
    assert migrate(connection) == 0


def refused(connection, statement, *parameters):
    with pytest.raises((errors.InsufficientPrivilege, errors.CheckViolation)), connection.transaction():
        connection.execute(statement, parameters or None)


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_producer_can_insert_the_columns_of_an_enqueue_and_no_others(connection, table):
    connection.execute("SET ROLE jobherd_enqueue")
    given = "run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras"
    connection.execute(
        f"INSERT INTO jobherd.{table} ({given}) VALUES (now(), NULL, 5, 1, 3, 'mail', 'a:b', '{{}}', NULL) RETURNING id"
    )
    for column, value in {
        "id": "7", "id ": "-1", "created_at": "now()", "attempts": "3", "crashes": "2", "alone": "true", "last_error": "'{}'",
    }.items():  # fmt: skip
        refused(connection, f"INSERT INTO jobherd.{table} ({column}, kind) VALUES ({value}, 'a:b')")
        with (
            pytest.raises(errors.InsufficientPrivilege),
            connection.cursor().copy(f"COPY jobherd.{table} ({column}, kind) FROM STDIN"),
        ):
            pass


@pytest.mark.parametrize("table", ["ready", "scheduled", "parked"])
def test_job_with_an_id_below_1_is_rejected(connection, table):
    for id_ in (0, -1, -(2**63)):
        with pytest.raises(errors.CheckViolation):
            connection.execute(f"INSERT INTO jobherd.{table} (id, kind) VALUES (%s, 'a:b')", [id_])


def test_producer_enqueues_many_jobs_without_choosing_ids(connection):
    connection.execute("SET ROLE jobherd_enqueue")
    with Client(connection=connection) as client:
        ids = client.enqueue_many("a:b", ({"n": n} for n in range(2100)))
        later = client.enqueue_many("a:b", ({"n": n} for n in range(2100)), delay="1h", cost={"memory_mb": 5})
    connection.execute("RESET ROLE")
    assert ask(connection, "SELECT id FROM jobherd.ready ORDER BY (payload ->> 'n')::integer") == [
        (id_,) for id_ in ids
    ]
    assert ask(connection, "SELECT id FROM jobherd.scheduled ORDER BY (payload ->> 'n')::integer") == [
        (id_,) for id_ in later
    ]
    assert ask(connection, "SELECT count(*) FROM jobherd.demands WHERE cost = '{\"memory_mb\": 5}'") == [(2100,)]


@pytest.mark.parametrize("kind", ["jobs:webhook", "jobs:purge_completed", "jobs:anything"])
@pytest.mark.parametrize("role", ["jobherd_enqueue", "jobherd_test_tenant"])
def test_roles_that_may_only_enqueue_cannot_enqueue_kinds_of_the_system(connection, kind, role):
    with connection.transaction(force_rollback=True):
        if role == "jobherd_test_tenant":
            connection.execute("CREATE ROLE jobherd_test_tenant")
            connection.execute("SELECT jobherd.grant_tenant('jobherd_test_tenant', 'acme')")
        connection.execute(f"SET LOCAL ROLE {role}")
        for statement in (
            "SELECT jobherd.enqueue(%s)",
            "SELECT jobherd.enqueue(%s, '{}', '{\"delay\": 60}')",
            "SELECT jobherd.enqueue_bytes(%s, 'x')",
            "INSERT INTO jobherd.ready (kind, extras) VALUES (%s, jobherd.extras_of('acme', NULL, NULL))",
            "INSERT INTO jobherd.scheduled (kind, extras) VALUES (%s, jobherd.extras_of('acme', NULL, NULL))",
        ):
            refused(connection, statement, kind)
        connection.execute("SELECT jobherd.enqueue('jobsite:mail')")
        connection.execute("SELECT jobherd.enqueue('jobs')")
    for other in ("jobherd_work", "jobherd_admin"):
        with connection.transaction(force_rollback=True):
            connection.execute(f"SET LOCAL ROLE {other}")
            connection.execute("SELECT jobherd.enqueue(%s)", [kind])


def test_producer_can_set_costs_only_of_its_own_jobs_and_cannot_read_them(connection):
    (theirs,) = ask(connection, "SELECT jobherd.demand(jobherd.enqueue('a:b'), '{\"memory_mb\": 9}')")[0]
    (plain,) = ask(connection, "SELECT jobherd.enqueue('a:b')")[0]
    connection.execute("SET ROLE jobherd_enqueue")
    for job in (theirs, plain):
        refused(connection, "SELECT jobherd.demand(%s, '{\"memory_mb\": 1}')", job)
        refused(connection, "SELECT jobherd.demand_own(ARRAY[%s]::bigint[], ARRAY['{}'::jsonb])", job)
    for statement in (
        "TABLE jobherd.demands",
        "UPDATE jobherd.demands SET cost = '{}'",
        "LOCK TABLE jobherd.demands",
        "INSERT INTO jobherd.demands VALUES (1, '{}')",
    ):
        refused(connection, statement)
    with connection.transaction():
        (own,) = ask(connection, "SELECT jobherd.enqueue('a:b')")[0]
        with connection.transaction():
            assert ask(connection, "SELECT jobherd.demand(%s, '{\"memory_mb\": 2}')", own) == [(own,)]
            assert ask(connection, "SELECT jobherd.demand(%s, '{\"memory_mb\": 3}')", own) == [(own,)]
    connection.execute("RESET ROLE")
    found = ask(connection, "SELECT job, cost ->> 'memory_mb' FROM jobherd.demands ORDER BY job")
    assert found == [(theirs, "9"), (own, "3")]


def test_worker_role_can_neither_forge_nor_erase_audit_entries(connection):
    connection.execute(
        "INSERT INTO jobherd.audit (at, actor, role, action) SELECT now() - n * interval '1 hour', 'anna', 'anna', 'x' FROM generate_series(0, 30) n"
    )
    job = ask(connection, "SELECT jobherd.enqueue('a:b')")[0][0]
    connection.execute("SET ROLE jobherd_work")
    for statement in (
        "DELETE FROM jobherd.audit",
        "INSERT INTO jobherd.audit (actor, role, action) VALUES ('anna', 'anna', 'x')",
        "SELECT jobherd.note_audit('anna', 'delete')",
        "SELECT jobherd.note_unless_noted('dashboard:anna', 'delete everything', '{}', 'forged')",
        "SELECT jobherd.note_unless_noted('dashboard:anna', 'pause', '{}', 'forged')",
    ):
        refused(connection, statement)
    assert len(ask(connection, "SELECT jobherd.drop_audit(0, 1000)")) == 7, (
        "only entries older than a day, whatever the caller requests"
    )
    assert ask(connection, "SELECT jobherd.cancel_as(%s, 'dashboard:anna')", job) == [("cancelled",)]
    connection.execute("SELECT set_config('jobherd.noted', 'yes', false)")
    connection.execute("SELECT jobherd.note_unless_noted('dashboard:anna', 'cancel', '{}', 'said by itself')")
    connection.execute("RESET ROLE")
    (user,) = ask(connection, "SELECT session_user::text")[0]
    found = ask(connection, "SELECT actor, action FROM jobherd.audit WHERE action <> 'x' ORDER BY id")
    assert found == [(user, "cancel")] * 2, "under the name of the session's user"
