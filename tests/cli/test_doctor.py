"""`doctor`: its findings, and that the fixes it prints work."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.supervisor.cli.doctor import schema
from tests.cli.rows import child, claim, remote_worker, send, supervisor
from tests.cli.shell import jobherd
from tests.support.network import Network
from tests.support.queue import Queue

HARM = (
    "DROP INDEX jobherd.ready_by_id",
    "ALTER TABLE jobherd.ready DROP CONSTRAINT ready_counts_are_counts",
    "ALTER TABLE jobherd.scheduled DROP CONSTRAINT ready_counts_are_counts",
    "ALTER TABLE jobherd.scheduled ADD CONSTRAINT ready_counts_are_counts CHECK (attempts >= 0)",
    "ALTER TABLE jobherd.ready RESET (autovacuum_vacuum_threshold)",
    "ALTER TABLE jobherd.ready DISABLE TRIGGER wake",
    "ALTER TABLE jobherd.ready ALTER priority DROP DEFAULT",
    "ALTER TABLE jobherd.gates DROP COLUMN reason CASCADE",
    "CREATE OR REPLACE FUNCTION jobherd.cancel(bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'no' $$",
)
HURT = {
    "the index ready_by_id of ready is missing",
    "the constraint ready_counts_are_counts of ready is missing",
    "the constraint ready_counts_are_counts of scheduled is not as the migrations make it",
    "the setting autovacuum_vacuum_threshold of ready is missing",
    "the trigger wake of ready is not as the migrations make it",
    "the default priority of ready is missing",
    "the column reason of gates is missing",
}


def findings(dsn: str, code: int) -> dict[str, dict[str, str]]:
    """Run `doctor` and return the findings that are not ok, by their texts."""
    answer = jobherd("doctor", "--json", dsn=dsn)
    assert answer.code == code, answer
    assert answer.json["ok"] is (code == 0)
    return {found["text"]: found for found in answer.json["findings"] if found["weight"] != "ok"}


def test_doctor_finds_nothing_wrong_in_a_new_database_and_leaves_nothing_behind(database):
    before = send(database, "SELECT count(*), (SELECT count(*) FROM pg_namespace) FROM pg_class")
    found = findings(database, 0)
    assert set(found) == {"no supervisor holds a lease: nothing runs"}
    assert send(database, "SELECT count(*), (SELECT count(*) FROM pg_namespace) FROM pg_class") == before


def test_roles_without_privileges_are_found_and_migrate_grants_them(database):
    send(database, "REVOKE ALL ON SCHEMA jobherd FROM jobherd_work, jobherd_read")
    (found,) = [one for text, one in findings(database, 1).items() if "without privileges" in text]
    assert found["text"].startswith("the roles jobherd_work, jobherd_read are without privileges in the schema")
    assert found["remedy"] == "jobherd migrate"
    assert jobherd("migrate", dsn=database).code == 0
    assert not [text for text in findings(database, 0) if "without privileges" in text]


def test_role_that_cannot_read_default_partitions_gets_a_note_and_all_other_checks(database):
    send(database, "DROP ROLE IF EXISTS t_works; CREATE ROLE t_works LOGIN IN ROLE jobherd_work")
    send(database, "SELECT jobherd.pause('mail'), jobherd.enqueue('a:b', '{}', '{\"queue\": \"mail\"}')")
    try:
        found = findings(make_conninfo(database, user="t_works"), 1)
    finally:
        send(database, "DROP ROLE t_works")
    (note,) = [one for one in found.values() if one["about"] == "partitions"]
    assert note["text"] == "not examined: permission denied for table history_default"
    assert [text for text in found if "queue mail is paused" in text or "paused" in text], "the last check must run"


def test_missing_roles_are_noted():
    rows = [
        {"name": name, "missing": name == "jobherd_admin", "granted": name != "jobherd_admin"}
        for name in ("jobherd_work", "jobherd_admin")
    ]
    (found,) = schema.roles(rows, "jobherd migrate")
    assert (found.weight, found.text) == (
        "note",
        "the role jobherd_admin is not there: only the owner of the schema has rights in it",
    )


def test_schema_in_the_search_path_where_every_role_may_create_functions_is_found(database):
    send(database, 'CREATE SCHEMA "Open"; CREATE SCHEMA shut; GRANT CREATE ON SCHEMA "Open" TO PUBLIC')
    dsn = make_conninfo(database, options='-csearch_path=shut,"Open"')
    (found,) = [one for text, one in findings(dsn, 0).items() if "every role may create functions" in text]
    assert found["text"].startswith('every role may create functions in "Open", ')
    send(database, found["remedy"])
    assert not [text for text in findings(dsn, 0) if "every role may create functions" in text]


def test_database_with_another_encoding_is_found(cluster):
    send(cluster.dsn(), "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    try:
        ((text, found),) = findings(cluster.dsn("bytes"), 1).items()
    finally:
        send(cluster.dsn(), "DROP DATABASE bytes")
    assert "encoding is SQL_ASCII" in text
    assert "another database" in found["remedy"]


def test_rejected_listen_is_found_and_the_other_checks_run(database):
    with Network(database) as network:
        network.refuse("*", "LISTEN")
        found = findings(network.dsn, 1)
    words = "the server rejects LISTEN, and jobs wait for the poll: refused by the network"
    assert found.pop(words)["remedy"] == "give the server's own address in --listen-dsn"
    assert set(found) == {"no supervisor holds a lease: nothing runs"}


def test_unreachable_listen_dsn_is_found_and_the_other_checks_run(database, tmp_path):
    answer = jobherd("doctor", "--json", "--listen-dsn", f"host={tmp_path} dbname=nowhere", dsn=database)
    assert answer.code == 1, answer
    found = {one["about"]: one for one in answer.json["findings"]}
    assert "--listen-dsn does not answer" in found["listen"]["text"]
    assert {found[about]["weight"] for about in ("settings", "schema", "bloat")} == {"ok"}


def test_read_only_database_is_found_and_checks_that_only_read_run(database):
    answer = jobherd("doctor", "--json", dsn=database, PGOPTIONS="-c default_transaction_read_only=on")
    assert answer.code == 1, answer
    found = {one["about"]: one for one in answer.json["findings"]}
    assert "transactions are read-only here" in found["settings"]["text"]
    assert "not examined" in found["schema"]["text"]
    assert found["bloat"]["weight"] == "ok"


def test_role_without_access_to_the_schema_is_found_and_the_other_checks_run(database):
    send(database, "CREATE ROLE stranger LOGIN")
    try:
        answer = jobherd("doctor", "--json", dsn=make_conninfo(database, user="stranger"))
    finally:
        send(database, "DROP ROLE stranger")
    assert answer.code == 1, answer
    found = [(one["weight"], one["about"]) for one in answer.json["findings"]]
    assert ("wrong", "privileges") in found
    assert ("ok", "settings") in found


def test_locked_table_is_found_and_doctor_does_not_wait_for_it(database):
    with psycopg.connect(database) as locking:
        locking.execute("LOCK TABLE jobherd.gates")
        with psycopg.connect(database, row_factory=dict_row) as looking:
            (row,) = looking.execute(sql.load("doctor/list_locks"), {"schema": "jobherd"}).fetchall()
        found = findings(database, 1)
        assert (row["pid"], row["tables"], row["state"]) == (locking.info.backend_pid, "gates", "idle in transaction")
    assert row["seconds"] >= 0
    assert any("has locked a Jobherd table" in text for text in found)


def test_sessions_that_hold_advisory_locks_of_jobherd_are_listed(database):
    """The locks of idle supervisors and of waiting clients are not listed."""
    hold = {
        "wake": "pg_advisory_xact_lock_shared(1785684584, 0)",
        "wait": "pg_advisory_lock(1785684585, 70)",
        "keep": "pg_advisory_lock(hashtext('jobherd.keep_partitions'))",
        "": "pg_advisory_lock_shared(1785684584, 3), pg_advisory_lock_shared(1785684585, 70), pg_advisory_lock(1785684584)",
    }
    with psycopg.connect(database, row_factory=dict_row) as looking:
        for what, call in hold.items():
            with psycopg.connect(database) as holder:
                holder.execute(f"SELECT {call}")
                rows = looking.execute(sql.load("doctor/list_wake_locks")).fetchall()
                looking.commit()
                assert [(row["pid"], row["what"]) for row in rows] == (
                    [(holder.info.backend_pid, what)] if what else []
                )
                assert all(row["seconds"] >= 0 for row in rows)
                assert all(row["role"] == holder.info.user for row in rows), (
                    "the role must be listed, since the name of an application does not identify a session"
                )


def test_doctor_does_not_wait_for_a_running_migration(database):
    with psycopg.connect(database, autocommit=True) as migrator, migrator.transaction():
        migrator.execute(sql.load("migrate/lock_migrations"))
        found = findings(database, 0)
    assert {text: note["about"] for text, note in found.items() if "compared" in text} == {
        "not compared: another session is migrating or comparing the schema": "schema"
    }
    assert "no supervisor holds a lease: nothing runs" in found, "the checks after this one must run"


def test_manual_changes_of_the_schema_are_found_and_the_printed_sql_fixes_them(database):
    function = send(database, "SELECT pg_get_function_identity_arguments('jobherd.cancel'::regproc)")[0][0]
    for harm in HARM:
        send(database, harm.replace("cancel(bigint) RETURNS text", f"cancel({function}) RETURNS text"))
    found = {text: one for text, one in findings(database, 1).items() if one["about"] == "schema"}
    assert HURT <= set(found)
    assert any("function cancel" in text for text in found)
    for one in found.values():
        if not one["remedy"].startswith("nothing"):
            send(database, one["remedy"])
    left = [text for text, one in findings(database, 0).items() if one["about"] == "schema"]
    assert not left


def test_invalid_index_is_found_and_the_printed_sql_fixes_it(database):
    send(
        database,
        "SET allow_system_table_mods = on; UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobherd.ready_by_id'::regclass",
    )
    (found,) = [one for one in findings(database, 1).values() if one["about"] == "indexes"]
    send(database, found["remedy"])
    assert not [one for one in findings(database, 0).values() if one["about"] == "indexes"]


def test_tables_of_the_forge_are_known_and_a_missing_index_of_them_is_found(database):
    """Regression: on the database of `make run`, `doctor` printed more than 100 notes about these objects."""
    with psycopg.connect(database, autocommit=True) as connection:
        migrate(connection, area="forge")
    assert set(findings(database, 0)) == {"no supervisor holds a lease: nothing runs"}
    send(database, "DROP INDEX jobherd.forge_commits_by_time")
    assert "the index forge_commits_by_time of forge_commits is missing" in findings(database, 1)


def test_object_that_a_user_has_added_is_only_noted(database):
    send(database, "CREATE INDEX mine ON jobherd.history (kind)")
    assert findings(database, 0)["the index mine of history was not created by Jobherd"]["weight"] == "note"


def test_webhook_triggers_are_known_and_the_printed_sql_enables_a_disabled_one(database):
    send(database, "SELECT jobherd.enable_webhooks()")
    assert not [text for text in findings(database, 0) if "webhook" in text]
    send(database, "ALTER TABLE jobherd.history DISABLE TRIGGER webhook")
    found = findings(database, 1)["the trigger webhook of history is not as the migrations make it"]
    send(database, found["remedy"])
    assert not [text for text in findings(database, 0) if "webhook" in text]


def test_missing_schema_is_found_with_the_command_that_creates_it(empty_database):
    found = findings(empty_database, 1)
    (missing,) = [text for text in found if "lacks" in text and "migration" in text]
    assert found[missing]["remedy"] == "jobherd migrate"


def test_remote_workers_count_as_workers(database):
    boss = supervisor(database)
    assert "no worker is registered" in findings(database, 1)
    remote_worker(database, boss)
    assert findings(database, 0) == {}


def in_minutes(found):
    """Return the findings without seconds, of which more may pass on a busy machine."""
    return {re.sub(r"(\d min) \d+ s", r"\1", text): finding for text, finding in found.items()}


def test_queue_without_a_supervisor_and_kind_without_a_handler_are_found(database):
    child(database, supervisor(database))
    (job,) = send(
        database,
        "INSERT INTO jobherd.ready (kind, queue, run_at, created_at) VALUES ('a:b', 'media', now() - interval '5 min', now() - interval '5 min') RETURNING id",
    )[0]
    found = in_minutes(findings(database, 1))
    assert f"no supervisor serves queue media: job {job} (a:b) has been due for 5 min, and 1 worker is idle" in found
    assert f"no worker has ever declared the kind a:b; job {job} waits for it" in found
    send(database, "INSERT INTO jobherd.gates (scope, name, paused_at) VALUES ('queue', 'media', now())")
    assert not [text for text in findings(database, 1) if "no supervisor serves queue" in text], (
        "a paused queue must not be reported"
    )


def test_stuck_flows_are_found(database):
    send(database, "SELECT jobherd.start_flow('f', '[{\"node\": \"a\", \"kind\": \"a:b\"}, {\"node\": \"b\", \"kind\": \"a:b\", \"after\": \"a\"}]')")  # fmt: skip
    assert not [text for text in findings(database, 1) if "flow" in text]
    send(
        database, "INSERT INTO jobherd.ends (flow, job, state, at) VALUES (0, 7, 'completed', now() - interval '5 min')"
    )
    assert (
        "a job of a flow ended 5 min ago, and no maintenance process has released the jobs that wait for it, and 1 job waits for other jobs"
        in in_minutes(findings(database, 1))
    )
    send(database, "DELETE FROM jobherd.ends")
    send(database, "DELETE FROM jobherd.ready")
    assert not [text for text in findings(database, 0) if "flow" in text], "a flow with a job left must not be reported"
    send(database, "DELETE FROM jobherd.blocked")
    assert "flow 1 is open, and none of its jobs is left: they were deleted with SQL" in findings(database, 1)


def test_job_still_suspended_a_minute_after_its_child_jobs_ended_is_found(database):
    job = send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1d\"}')")[0][0]
    flow = send(database, "SELECT jobherd.start_flow('spawn a:b', '[]')")[0][0]
    send(database, "DELETE FROM jobherd.ends")
    send(database, "UPDATE jobherd.flows SET state = 'completed', ended_at = now()")
    send(
        database,
        "INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (%s, 'gather:s', %s, %s)",
        job, f"flow/{flow}", flow,
    )  # fmt: skip
    sentence = f"job {job} is suspended, although the child jobs that it waits for ended more than a minute ago"
    assert sentence not in findings(database, 1)
    send(database, "UPDATE jobherd.flows SET ended_at = now() - interval '2 min'")
    assert sentence in findings(database, 1)


def test_schedules_that_do_not_run_are_found(database):
    send(
        database,
        "INSERT INTO jobherd.schedules (name, kind, cron, plan_from, next_at, error, retired_at) VALUES"
        " ('bad', 'a:b', '99 * * * *', NULL, NULL, 'minute must be', NULL),"
        " ('late', 'a:b', '* * * * *', NULL, now() - interval '5 min', NULL, NULL),"
        " ('old', 'a:b', '* * * * *', NULL, now() - interval '5 min', NULL, now()),"
        " ('unknown', 'a:b', '* * * * *', NULL, now() + interval '5 min', NULL, NULL)",
    )
    found = in_minutes(findings(database, 1))
    assert "schedule bad does not run: minute must be" in found
    assert "schedule late was due 5 min ago, and no maintenance process has enqueued its job" in found
    assert found["schedule old is retired: no handler has declared it for 10 minutes"]["weight"] == "note"
    assert "schedule unknown enqueues jobs of kind a:b, which no worker has ever declared" in found
    send(database, "UPDATE jobherd.schedules SET paused_at = now()")
    assert not [text for text in findings(database, 0) if "schedule" in text], (
        "schedules that a user has paused must not be reported"
    )
    send(
        database,
        "UPDATE jobherd.schedules SET paused_by = 'maintenance', pause_reason = '3 failed runs' WHERE name = 'late'",
    )
    assert "schedule late is paused: 3 failed runs" in findings(database, 1)


def test_job_that_waits_for_an_encryption_key_is_found(database):
    child(database, supervisor(database))
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1 minute\"}')")
    (job,) = send(database, """UPDATE jobherd.scheduled SET last_error = '{"code": "KEY_MISSING"}' RETURNING id""")[0]
    found = findings(database, 1)[f"job {job} waits for a key that the worker which claimed it did not have"]
    assert (found["weight"], found["about"]) == ("wrong", "keys")


def test_queue_that_has_only_parked_jobs_is_not_reported_as_unserved(database):
    child(database, supervisor(database))
    send(database, "SELECT jobherd.set_limit(kind => 'a:b', max_running => 1)")
    put = "INSERT INTO jobherd.{} (kind, queue, priority, run_at, created_at) VALUES ('a:b', %s, %s, now() - interval '5 min', now() - interval '5 min')"
    for queue in ("media", "mail"):
        send(database, put.format("parked"), queue, 0)
    send(database, put.format("ready"), "mail", 1)
    (text,) = [text for text in findings(database, 1) if "no supervisor serves queue" in text]
    assert "serves queue mail:" in text, "only queue mail also has a job that any worker may claim"


def test_limits_that_cannot_work_are_found(database):
    send(
        database,
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
        " VALUES ('crm:push', 'crm', 0, 5, 3, 7, 30)",
    )
    send(database, "INSERT INTO jobherd.ready (kind, queue) VALUES ('crm:push', 'crm')")
    send(database, "SELECT jobherd.limit('mial', '10/s'), jobherd.set_limit(kind => 'crm:pusch', max_running => 1)")
    send(
        database,
        "SELECT jobherd.limit('crm', '1000/s', burst => 2), jobherd.fair('crm'), jobherd.limit(kind => 'crm:push', rate => '5/s')",
    )
    found = {text: one["remedy"] for text, one in findings(database, 1).items() if one["about"] == "limits"}
    assert {text.partition(", but")[0].partition(" of 1000")[0]: remedy for text, remedy in found.items()} == {
        "kind crm:pusch has a limit or turns": "correct the name: jobherd limit --kind crm:pusch off",
        "queue mial has a limit or turns": "correct the name: jobherd limit mial off",
        "queue crm has a rule for its partitions": "declare `partition=` on the handlers, or name the partition when you enqueue; see docs/how-to/operate/fairness.md",
        "queue crm cannot reach its rate limit": "jobherd limit crm 1000/s --burst 50",
    }


@pytest.mark.parametrize("columns", ["80", "120"])
def test_text_output_fits_the_terminal_and_ends_with_a_summary(database, columns):
    answer = jobherd("doctor", dsn=database, COLUMNS=columns)
    assert answer.lines[-1] == "no problems, 1 note"
    assert max(map(len, answer.lines)) <= int(columns)


def test_role_that_must_not_end_sessions_is_found_and_the_printed_sql_fixes_it(database):
    send(database, 'DROP ROLE IF EXISTS "t Hard"; CREATE ROLE "t Hard" LOGIN IN ROLE jobherd_work, jobherd_read')
    send(database, "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC")
    try:
        dsn = make_conninfo(database, user="t Hard")
        (found,) = [one for text, one in findings(dsn, 1).items() if "pg_terminate_backend" in text]
        assert found["text"].startswith("the role t Hard must not call pg_terminate_backend")
        send(database, found["remedy"])
        assert not [text for text in findings(dsn, 0) if "pg_terminate_backend" in text]
    finally:
        send(database, 'DROP OWNED BY "t Hard"; DROP ROLE "t Hard"')


def test_role_that_must_not_end_the_sessions_of_another_login_is_found(database):
    send(database, "DROP ROLE IF EXISTS t_one, t_two; CREATE ROLE t_one LOGIN IN ROLE jobherd_work")
    send(database, "CREATE ROLE t_two LOGIN IN ROLE jobherd_work, jobherd_read")
    try:
        with Queue(make_conninfo(database, user="t_one")) as one:
            one.child()
            dsn = make_conninfo(database, user="t_two")
            (found,) = [
                each
                for text, each in findings(dsn, 0).items()
                if text.startswith("the role t_two must not end sessions of t_one")
            ]
            assert found["remedy"].startswith("GRANT pg_signal_backend TO t_two")
    finally:
        send(database, "DROP ROLE t_one, t_two")


def test_renamed_schema_is_rejected_and_the_printed_sql_fixes_it(database):
    send(database, "ALTER SCHEMA jobherd RENAME TO queue_eu")
    refused = jobherd("migrate", "--schema", "queue_eu", dsn=database)
    assert refused.code == 78, refused
    answer = jobherd("doctor", "--json", "--schema", "queue_eu", dsn=database)
    assert answer.code == 1, answer
    [found] = (found for found in answer.json["findings"] if found["weight"] == "wrong")
    assert "'queue_eu' was renamed" in found["text"]
    assert found["remedy"] == "ALTER SCHEMA queue_eu RENAME TO jobherd"
    assert found["remedy"] in refused.err
    send(database, found["remedy"])
    assert jobherd("migrate", dsn=database).code == 0


def test_row_security_enabled_by_an_event_trigger_is_found_by_owner_and_worker(empty_database):
    send(
        empty_database,
        """CREATE FUNCTION public.secure() RETURNS event_trigger LANGUAGE plpgsql AS $$
        DECLARE made record;
        BEGIN
            FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE command_tag = 'CREATE TABLE' LOOP
                EXECUTE 'ALTER TABLE ' || made.object_identity || ' ENABLE ROW LEVEL SECURITY';
            END LOOP;
        END $$;
        CREATE EVENT TRIGGER secure_all ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.secure()""",
    )
    assert jobherd("migrate", dsn=empty_database).code == 0
    send(empty_database, "DROP ROLE IF EXISTS t_seen; CREATE ROLE t_seen LOGIN IN ROLE jobherd_work, jobherd_read")
    worker = make_conninfo(empty_database, user="t_seen")
    try:
        refused = jobherd("jobs", dsn=worker)
        assert refused.code == 78, refused
        assert "row-level security hides the tables" in refused.err
        for dsn in (empty_database, worker):
            (found,) = [one for text, one in findings(dsn, 1).items() if text.startswith("row-level security is on")]
            assert "secure_all" in found["text"]
        assert not [text for text in findings(worker, 1) if "lacks" in text and "migration" in text]
        send(empty_database, found["remedy"])
        assert not [text for text in findings(worker, 0) if "row-level security" in text]
        assert jobherd("jobs", dsn=worker).code == 0
    finally:
        send(empty_database, "DROP ROLE t_seen")


def test_harmful_settings_of_the_role_are_found(database):
    send(database, "DROP ROLE IF EXISTS t_set; CREATE ROLE t_set LOGIN SUPERUSER")
    send(database, "ALTER ROLE t_set SET row_security = off; ALTER ROLE t_set SET session_replication_role = replica")
    try:
        found = {
            text.partition(" ")[0]: one for text, one in findings(make_conninfo(database, user="t_set"), 1).items()
        }
    finally:
        send(database, "DROP ROLE t_set")
    assert found["row_security"]["weight"] == "note"
    assert found["session_replication_role"]["weight"] == "wrong"


def test_paused_backlog_exceeded_limit_and_many_retries_are_noted(database):
    at = child(database, supervisor(database))
    for kind in ("mail:receipt", "mail:bulk", "api:sync"):
        send(
            database,
            "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
            " VALUES (%s, 'mail', 0, 5, 3, 7, 30)",
            kind,
        )
    send(database, "INSERT INTO jobherd.ready (kind, queue) SELECT 'mail:receipt', 'mail' FROM generate_series(1, 3)")
    for _ in range(3):
        claim(database, at)
    send(database, "SELECT jobherd.set_limit('mail', 2)")
    send(database, "INSERT INTO jobherd.ready (kind, queue) SELECT 'mail:bulk', 'bulk' FROM generate_series(1, 25)")
    send(database, "SELECT jobherd.pause('bulk', reason => 'the provider is down')")
    send(
        database,
        "INSERT INTO jobherd.scheduled (kind, attempts, run_at, last_error)"
        ' SELECT \'api:sync\', 1, now() + \'3 h\', \'{"code": "UNHANDLED_ERROR", "message": "OSError: refused"}\' FROM generate_series(1, 60)',
    )
    found = findings(database, 0)
    (pause,) = [one for one in found.values() if one["about"] == "pauses"]
    assert "queue bulk was paused by " in pause["text"]
    assert pause["text"].endswith("(the provider is down): 25 ready jobs wait")
    assert pause["remedy"] == "jobherd resume bulk"
    (limit,) = [one for one in found.values() if one["about"] == "limits"]
    assert limit["text"] == "3 jobs of queue mail run, and its concurrency limit is 2"
    (retry,) = [one for one in found.values() if one["about"] == "retries"]
    assert retry["text"].startswith("60 jobs of kind api:sync failed with OSError and run again, the first in ")
    assert retry["text"].endswith(": OSError: refused")
    listing, *rest = retry["remedy"].partition("after the fix: ")[2].split(" | ")
    assert len(jobherd(*listing.split()[1:], dsn=database).json) == 60, (
        "the command must list more jobs than the default of 50"
    )
    assert rest == ["jq '.[].id'", "jobherd retry -"], "a shell can expand .[].id without quotes"
    send(database, "SELECT jobherd.pause('*')")
    (everything,) = [one for text, one in findings(database, 0).items() if text.startswith("everything was paused")]
    assert everything["remedy"] == "jobherd resume --all"
    assert jobherd(*everything["remedy"].split()[1:], dsn=database).code == 0
