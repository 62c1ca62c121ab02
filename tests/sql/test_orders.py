"""Fleet commands in the database: sent, taken once, rejected when old, answered once, deleted. Also the audit log."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support.patience import LIMIT
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def rows(queue, statement, /, **parameters):
    return queue.connection.cursor(row_factory=dict_row).execute(queue.text(statement), parameters).fetchall()


def send(queue, statement, /, **parameters):
    return queue.connection.execute(queue.text(statement), parameters)


def give(queue, supervisor, name="drain", arguments="{}", actor="anna", reason=None):
    return rows(
        queue,
        "control/send_fleet_command",
        supervisor=supervisor.id,
        name=name,
        arguments=arguments,
        actor=actor,
        reason=reason,
    )[0]["id"]


def take(queue, supervisor, most=8):
    return [row["id"] for row in rows(queue, "control/take_fleet_commands", supervisor=supervisor.id, most=most)]


def order(queue, number):
    return rows(queue, "control/show_fleet_command", order=number)[0]


def notes(queue):
    return rows(queue, "dashboard/list_audit", before=None, actor=None, action=None, most=100)


def age(queue, number, span):
    queue.run(f"UPDATE jobherd.fleet_commands SET asked_at = asked_at - interval '{span}', taken_at = taken_at - interval '{span}', "
              f"done_at = done_at - interval '{span}' WHERE id = %s", number)  # fmt: skip


def test_fleet_command_is_notified_then_taken_and_answered_once_by_its_supervisor(queue):
    mine, other = queue.supervisor(), queue.supervisor()
    with psycopg.connect(queue.dsn, autocommit=True) as ears:
        ears.execute("LISTEN jobherd_jobs")
        number = give(queue, mine, arguments='{"job": 7}')
        assert next(ears.notifies(timeout=LIMIT, stop_after=1)).payload == f"@order:{mine.id}"
    assert take(queue, other) == []
    [taken] = rows(queue, "control/take_fleet_commands", supervisor=mine.id, most=8)
    assert taken == {"id": number, "name": "drain", "arguments": {"job": 7}, "asked_by": "anna"}
    assert take(queue, mine) == []
    assert send(queue, "control/answer_fleet_command", order=number, answer='{"running": 2}', error=None).rowcount == 1
    assert send(queue, "control/answer_fleet_command", order=number, answer=None, error="no").rowcount == 0, (
        "the first answer is kept"
    )
    assert (order(queue, number)["answer"], order(queue, number)["error"]) == ({"running": 2}, None)


def test_oldest_fleet_commands_are_taken_first_up_to_the_requested_number(queue):
    supervisor = queue.supervisor()
    numbers = [give(queue, supervisor, "add") for _ in range(5)]
    assert [take(queue, supervisor, most=2), take(queue, supervisor, most=2), take(queue, supervisor, most=2)] == [
        numbers[:2], numbers[2:4], numbers[4:],
    ]  # fmt: skip


def test_fleet_command_that_was_not_taken_within_30_s_is_rejected_and_never_taken(queue):
    supervisor = queue.supervisor()
    late, early = give(queue, supervisor), give(queue, supervisor, "add")
    age(queue, late, "31 s")
    assert take(queue, supervisor) == [early]
    assert "did not take it within 30 s" in order(queue, late)["error"]
    assert order(queue, late)["taken_at"] is None


def test_withdrawn_fleet_command_is_not_taken_and_a_taken_one_cannot_be_withdrawn(queue):
    supervisor = queue.supervisor()
    first, second = give(queue, supervisor, "add"), give(queue, supervisor, "add")
    assert rows(queue, "control/withdraw_fleet_command", order=first) == [{"withdrawn": True}]
    assert take(queue, supervisor) == [second]
    assert rows(queue, "control/withdraw_fleet_command", order=second) == [{"withdrawn": False}]


def test_maintenance_closes_unanswered_fleet_commands_and_deletes_old_ones(queue):
    supervisor = queue.supervisor()
    untaken, unanswered, fresh, done, report = (
        give(queue, supervisor, name) for name in ("add", "add", "add", "add", "report")
    )
    queue.run("UPDATE jobherd.fleet_commands SET taken_at = clock_timestamp() WHERE id = %s", unanswered)
    for number in (done, report):
        send(queue, "control/answer_fleet_command", order=number, answer="{}", error=None)
    for number, span in ((untaken, "31 s"), (unanswered, "11 minutes"), (done, "2 minutes"), (report, "2 minutes")):
        age(queue, number, span)
    assert send(queue, "maintenance/delete_fleet_commands", most=10).rowcount == 1
    assert "did not take" in order(queue, untaken)["error"]
    assert "did not answer" in order(queue, unanswered)["error"]
    assert order(queue, fresh)["done_at"] is None
    assert queue.run("SELECT id FROM jobherd.fleet_commands ORDER BY id") == [
        (number,) for number in (untaken, unanswered, fresh, done)
    ]
    age(queue, done, "1 day")
    assert send(queue, "maintenance/delete_fleet_commands", most=10).rowcount == 1


def test_report_is_requested_at_most_once_a_second_for_any_number_of_viewers(queue):
    supervisor = queue.supervisor()
    first = give(queue, supervisor, "report")
    age(queue, first, "-1 minute")  # dated into the future, so that it stays young if this test is slow
    assert give(queue, supervisor, "report") == first
    age(queue, first, "1 hour")
    assert give(queue, supervisor, "report") != first
    assert notes(queue) == [], "a request for a report has no audit entry"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("jobherd.send_fleet_command(999999, 'drain')", "supervisor 999999 is not there"),
        ("jobherd.send_fleet_command({id}, 'Drain it')", "name 'Drain it' is not a word"),
        ("jobherd.send_fleet_command({id}, 'drain', '[1]')", "must be a JSON object"),
        ("jobherd.send_fleet_command(NULL, 'drain')", "supervisor null is not there"),
    ],
)
def test_invalid_fleet_command_is_rejected_and_not_stored(queue, call, said):
    supervisor = queue.supervisor()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=said):
        queue.run(f"SELECT {call.format(id=supervisor.id)}")
    assert queue.count("fleet_commands") == 0


def test_supervisor_with_an_expired_lease_gets_no_fleet_commands(queue):
    supervisor = queue.supervisor()
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="expired"):
        give(queue, supervisor)


def test_fleet_command_is_rejected_while_100_are_unanswered(queue):
    supervisor = queue.supervisor()
    queue.run("SELECT jobherd.send_fleet_command(%s, 'add') FROM generate_series(1, 100)", supervisor.id)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="100 fleet commands"):
        give(queue, supervisor)
    taken = take(queue, supervisor)
    send(queue, "control/answer_fleet_command", order=taken[0], answer="{}", error=None)
    give(queue, supervisor)


# -- the audit log


def test_audit_entry_of_each_action_names_actor_and_target(queue):
    supervisor = queue.supervisor()
    job, other = queue.enqueue("a:b"), queue.enqueue("a:b", delay=60.0)
    [(me,)] = queue.run("SELECT session_user::text")
    queue.run("SELECT jobherd.pause('mail', 'down', actor => 'anna'), jobherd.pause('mail', actor => 'anna')")
    queue.run("SELECT jobherd.resume('mail', actor => 'bert', reason => 'up again'), jobherd.resume('mail')")
    queue.run("SELECT jobherd.pause('*')")
    queue.run(
        "SELECT jobherd.set_limit(kind => 'a:b', max_running => 3), jobherd.set_limit(kind => 'a:b', max_running => 3)"
    )
    queue.run("SELECT jobherd.retry_as(%s, 'anna', 'now'), jobherd.retry(%s)", other, job)
    assert queue.cancel(job) == "cancelled"
    assert queue.cancel(job) == "cancelled"
    assert queue.cancel(12345) is None
    number = give(queue, supervisor, reason="moving")
    found = [(row["actor"], row["action"], row["target"], row["reason"]) for row in reversed(notes(queue))]
    assert found == [
        ("anna", "pause", {"queue": "mail"}, "down"),
        ("anna", "pause", {"queue": "mail"}, None),
        ("bert", "resume", {"queue": "mail"}, "up again"),
        (me, "pause", {"all": "everything"}, None),
        (me, "limit", {"kind": "a:b", "max_running": 3, "before": None}, None),
        ("anna", "retry", {"job": other}, "now"),
        (me, "cancel", {"job": job}, None),
        ("anna", "drain", {"supervisor": supervisor.id, "process": "test/1", "command": number}, "moving"),
    ], "an action without effect has no audit entry"


def test_rolled_back_action_has_no_audit_entry(queue):
    with queue.connection.transaction(force_rollback=True):
        queue.run("SELECT jobherd.pause('mail')")
        assert len(notes(queue)) == 1
    assert notes(queue) == []


def test_bulk_action_has_a_single_audit_entry(queue):
    jobs = queue.enqueue_many("a:b", 3)
    with queue.connection.transaction():
        rows(queue, "control/write_audit_entry", actor="anna", action="cancel many", target='{"jobs": 3}', reason=None)
        queue.run("SELECT jobherd.cancel(id) FROM unnest(%s::bigint[]) AS id", jobs)
    assert [(row["action"], row["target"]) for row in notes(queue)] == [("cancel many", {"jobs": 3})]
    queue.run("SELECT jobherd.pause('mail')")
    assert [row["action"] for row in notes(queue)] == ["pause", "cancel many"], (
        "the next transaction has its own audit entry"
    )


def test_audit_entry_has_the_database_role_regardless_of_the_given_actor(queue):
    queue.run("DROP ROLE IF EXISTS t_app")
    queue.run("CREATE ROLE t_app LOGIN")
    try:
        queue.run("GRANT jobherd_admin TO t_app")
        queue.run("SET SESSION AUTHORIZATION t_app")
        queue.run("SELECT jobherd.pause('mail', actor => 'the owner')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            queue.run("UPDATE jobherd.audit SET role = 'owner'")
        queue.run("RESET SESSION AUTHORIZATION")
        assert [(row["actor"], row["role"]) for row in notes(queue)] == [("the owner", "t_app")]
    finally:
        queue.run("RESET SESSION AUTHORIZATION")
        queue.run("DROP OWNED BY t_app")
        queue.run("DROP ROLE t_app")


def test_audit_entry_of_an_automatic_resume_has_the_actor_maintenance(queue):
    queue.run("SELECT jobherd.pause('mail', resume_at => clock_timestamp() + interval '1 hour', actor => 'anna')")
    queue.run("UPDATE jobherd.gates SET resume_at = clock_timestamp()")
    assert send(queue, "maintenance/end_pauses").fetchone()[0] == 1
    assert [(row["actor"], row["action"]) for row in notes(queue)] == [("maintenance", "resume"), ("anna", "pause")]


def test_old_audit_entries_are_deleted_in_limited_steps_and_recent_ones_kept(queue):
    queue.run(
        "INSERT INTO jobherd.audit (at, actor, role, action) SELECT now() - n * interval '1 day', 'a', 'a', 'x' FROM generate_series(9, 1, -1) n"
    )
    keep = 5.5 * 86400
    assert [send(queue, "maintenance/delete_audit", most=3, keep=keep).rowcount for _ in range(3)] == [3, 1, 0]
    assert queue.count("audit") == 5
