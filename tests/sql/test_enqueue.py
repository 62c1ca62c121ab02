"""The SQL function `enqueue`: accepted and rejected arguments, error messages, and which sessions are notified."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support.patience import LIMIT
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def enqueue(queue, kind="mail:receipt", payload="{}", options="{}"):
    return queue.run("SELECT jobherd.enqueue(%s, %s::jsonb, %s::jsonb)", kind, payload, options)[0][0]


def listen(queue):
    """Return a session that makes producers notify. test_wake.py covers when they need not."""
    connection = psycopg.connect(queue.dsn, autocommit=True)
    queue.opened.append(connection)
    connection.execute(queue.text("wake/listen_jobs"))
    connection.execute(queue.text("wake/enable_notify"))
    return connection


def heard(connection, stop_after):
    """Return the notifications before the marker. PostgreSQL delivers them in the order of commits."""
    notes = []
    for note in connection.notifies(timeout=LIMIT, stop_after=None):
        if note.payload == stop_after:
            return notes
        notes.append(note.payload)
    pytest.fail("the marker never came")


def mark(queue, word):
    queue.run("SELECT pg_notify('jobherd_jobs', %s)", word)


def test_enqueue_needs_only_the_kind(queue):
    row = queue.job(queue.run("SELECT jobherd.enqueue('mail:receipt')")[0][0])
    assert (row["state"], row["queue"], row["priority"], row["attempts"], row["max_attempts"], row["payload"]) == (
        "ready", "default", 0, 0, 5, {},
    )  # fmt: skip


def test_enqueue_stores_every_option(queue):
    number = enqueue(
        queue,
        payload='{"order_id": 7}',
        options='{"queue": "mail", "priority": -5, "delay": "10 minutes", "max_attempts": 8, "timeout": "2 minutes", "expires_at": "2999-01-01"}',
    )
    row = queue.job(number)
    assert (row["state"], row["queue"], row["priority"], row["max_attempts"], row["timeout"], row["payload"]) == (
        "scheduled", "mail", -5, 8, 120.0, {"order_id": 7},
    )  # fmt: skip
    assert queue.run(
        "SELECT run_at - created_at = interval '10 minutes' FROM jobherd.scheduled WHERE id = %s", number
    ) == [(True,)]


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ('{"delay": 60}', "scheduled"),
        ('{"delay": 0}', "ready"),
        ('{"delay": "-1 hour"}', "ready"),
        ('{"run_at": "2020-01-01"}', "ready"),
    ],
)
def test_job_with_a_future_time_is_scheduled_and_one_with_a_past_time_is_ready(queue, options, state):
    assert queue.state(enqueue(queue, options=options)) == state


def test_job_gets_the_queue_priority_and_attempts_that_its_kind_declares(queue):
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) "
        "VALUES ('image:thumbnail', 'media', 3, 8, 3, 7, 30)"
    )
    row = queue.job(enqueue(queue, kind="image:thumbnail"))
    assert (row["queue"], row["priority"], row["max_attempts"]) == ("media", 3, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('{"nope": 1}', 'unknown option "nope"'),
        ('{"priority": "high"}', 'option "priority" has a bad value "high"'),
        ('{"priority": 99999}', 'option "priority"'),
        ('{"queue": "A b"}', 'option "queue"'),
        ('{"queue": ""}', 'option "queue"'),
        ('{"delay": "soon"}', 'option "delay"'),
        ('{"delay": {}}', 'option "delay"'),
        ('{"run_at": "infinity"}', 'option "run_at"'),
        ('{"run_at": "12345-01-01"}', 'option "run_at"'),
        ('{"run_at": "9000-01-01T00:00Z"}', 'option "run_at"'),
        ('{"run_at": "8999-12-31T23:00-01"}', 'option "run_at"'),
        ('{"delay": 1e12}', 'option "delay" has a bad value 1000000000000'),
        ('{"delay": 230000000000}', 'option "delay" has a bad value 230000000000'),
        ('{"expires_at": "-infinity"}', 'option "expires_at"'),
        ('{"expires_at": "1900-01-01T01:00+01"}', 'option "expires_at"'),
        ('{"timeout": 0}', 'option "timeout"'),
        ('{"timeout": "-3 seconds"}', 'option "timeout"'),
        ('{"max_attempts": 0}', 'option "max_attempts"'),
        ('{"delay": 1, "run_at": "2030-01-01"}', "exclude each other"),
        ("[]", "options must be a JSON object"),
    ],
)
def test_enqueue_rejects_an_invalid_option_and_names_it(queue, options, words):
    queue.run("SET timezone = 'Etc/GMT+11'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        enqueue(queue, options=options)
    assert queue.count("ready") == queue.count("scheduled") == 0


@pytest.mark.parametrize("kind", [None, "", "A:b", "a b", "x" * 101, "a;drop table b", "<script>", "../x", "a\nb"])
def test_enqueue_rejects_an_invalid_kind_name(queue, kind):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="kind"):
        enqueue(queue, kind=kind)


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        ('{"a": "\\u0000"}', psycopg.errors.UntranslatableCharacter, "u0000"),
        ('{"a": "\\ud800"}', psycopg.errors.InvalidTextRepresentation, "json"),
        ('{"a": NaN}', psycopg.errors.InvalidTextRepresentation, "json"),
        (
            '{"deep": ' + "[" * 150 + "]" * 150 + "}",
            psycopg.errors.InvalidParameterValue,
            r"\$\.deep\[0\].*nested deeper than 100",
        ),
        (
            '{"items": [1, {"n": ' + "9" * 1001 + "}]}",
            psycopg.errors.InvalidParameterValue,
            r"\$\.items\[1\]\.n: an integer of more than 1,000",
        ),
        ('{"n": 1e5000}', psycopg.errors.InvalidParameterValue, r"\$\.n: an integer of more than 1,000"),
        (json.dumps({"text": "x" * 1_000_001}), psycopg.errors.ProgramLimitExceeded, "more than 1000000"),
        ("[" + ", ".join(["1e100000"] * 12) + "]", psycopg.errors.ProgramLimitExceeded, "more than 1000000"),
    ],
)
def test_enqueue_rejects_a_payload_beyond_its_limits(queue, payload, error, words):
    with pytest.raises(error, match=words):
        enqueue(queue, payload=payload)
    assert queue.count("ready") == 0


def test_enqueue_measures_a_compressed_payload_by_its_full_length(queue):
    queue.run("CREATE TABLE kept (document jsonb)")
    queue.run("INSERT INTO kept VALUES (%s::jsonb)", '{"n": ' + "1" * 8000 + "}")
    assert queue.run("SELECT pg_column_size(document) < 200 FROM kept") == [(True,)]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"\$\.n: an integer of more than 1,000"):
        queue.run("SELECT jobherd.enqueue('a:b', document) FROM kept")


def test_enqueue_accepts_a_payload_at_its_limits_or_with_brackets_and_digits_in_strings(queue):
    for payload in (
        '{"text": "' + "[{" * 200 + '"}',
        '{"text": "' + "9" * 2000 + '"}',
        '{"n": ' + "9" * 1000 + "}",
        "[" * 100 + "]" * 100,
    ):
        assert queue.state(enqueue(queue, payload=payload)) == "ready"


def test_enqueue_and_its_notification_are_part_of_the_callers_transaction(queue):
    ear = listen(queue)
    with psycopg.connect(queue.dsn) as caller:
        number = caller.execute("SELECT jobherd.enqueue('a:b')").fetchone()[0]
        assert queue.state(number) is None
        caller.rollback()
    mark(queue, "rolled back")
    assert heard(ear, "rolled back") == []
    assert queue.state(number) is None
    with psycopg.connect(queue.dsn) as caller:
        number = caller.execute("SELECT jobherd.enqueue('a:b')").fetchone()[0]
    mark(queue, "committed")
    assert heard(ear, "committed") == ["default"]
    assert queue.state(number) == "ready"


def test_transaction_sends_one_notification_for_each_queue(queue):
    ear = listen(queue)
    with queue.connection.transaction():
        queue.enqueue_many("a:b", 500)
        queue.enqueue_many("a:b", 500)
        queue.enqueue("a:b", queue="mail")
    mark(queue, "done")
    assert sorted(heard(ear, "done")) == ["default", "mail"]


def test_maintenance_process_is_notified_only_of_an_earlier_due_time(queue):
    ear = listen(queue)
    queue.enqueue("a:b", delay=60)
    queue.enqueue("a:b", delay=120)
    queue.enqueue("a:b", delay=30)
    mark(queue, "done")
    assert heard(ear, "done") == ["@due", "@due"]


def test_ids_follow_the_order_of_the_payloads(queue):
    numbers = queue.enqueue_many("a:b", 1000)
    assert numbers == sorted(numbers)
    rows = queue.run("SELECT (payload ->> 'n')::int FROM jobherd.ready ORDER BY id")
    assert [row[0] for row in rows] == list(range(1000))


@pytest.mark.parametrize(
    "column",
    [
        "kind = 'No Name'",
        "queue = 'No Name'",
        "attempts = -1",
        "max_attempts = 0",
        "timeout = 0",
        "run_at = 'infinity'",
        "crashes = -1",
    ],
)
def test_table_constraints_reject_values_that_enqueue_would_reject(queue, column):
    queue.enqueue("a:b")
    with pytest.raises(psycopg.errors.CheckViolation):
        queue.run(f"UPDATE jobherd.ready SET {column}")


@pytest.mark.parametrize("table", ["ready", "scheduled"])
@pytest.mark.parametrize("moment", ["9000-01-01 00:00Z", "200000-01-01", "1900-01-01 00:00Z", "0044-03-15 BC"])
def test_raw_sql_cannot_create_a_job_outside_the_valid_time_range(queue, table, moment):
    # `scheduled` has the constraints of `ready`, with their names.
    with pytest.raises(psycopg.errors.CheckViolation, match=f'"{table}" violates.*"ready_is_created_in_our_time"'):
        queue.run(f"INSERT INTO jobherd.{table} (kind, created_at) VALUES ('a:b', %s)", moment)
