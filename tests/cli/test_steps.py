"""`steps` lists the recorded steps of a job, also decrypted; `signal` sends a signal."""

from __future__ import annotations

import json

import psycopg

from jobherd.handlers._values import keys
from jobherd.handlers._values.encryption import seal_document
from tests.cli.rows import send
from tests.cli.shell import jobherd

KEYS = f"one={'A' * 43}="


def put(database) -> int:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute("SELECT jobherd.enqueue('a:b')").fetchone()[0]


def record(database, job, name, result, version=1) -> None:
    send(
        database,
        "INSERT INTO jobherd.steps (job, name, result, token, attempt, version) VALUES (%s, %s, %s, 5, 2, %s)",
        job, name, result, version,
    )  # fmt: skip


def test_steps_are_listed_in_the_order_in_which_they_were_recorded(database):
    job = put(database)
    record(database, job, "charge", '{"id": "ch_1"}', 3)
    record(database, job, "after", None)
    steps = jobherd("steps", job, "--json", dsn=database).json
    assert [(step["name"], step["result"], step["attempt"], step["version"], step["token"]) for step in steps] == [
        ("charge", {"id": "ch_1"}, 2, 3, 5),
        ("after", None, 2, 1, 5),
    ]
    out = jobherd("steps", job, dsn=database, COLUMNS="160").out
    assert out.index("charge") < out.index("after")
    assert '{"id": "ch_1"}' in out


def test_job_without_steps_and_missing_job_are_reported(database):
    answer = jobherd("steps", put(database), dsn=database)
    assert (answer.code, answer.out) == (0, "")
    assert "has recorded no step" in answer.err
    assert jobherd("steps", 4711, dsn=database).code == 1


def test_encrypted_results_are_shown_only_with_decrypt_and_the_key(database, monkeypatch):
    job = put(database)
    monkeypatch.setenv("JOBHERD_KEYS", KEYS)
    keys.ring.cache_clear()
    try:
        record(database, job, "charge", seal_document(json.dumps({"card": "4111"}), "step", "a:b", job, "charge"))
    finally:
        keys.ring.cache_clear()
    shut = jobherd("steps", job, dsn=database).out
    assert "(encrypted)" in shut
    opened = jobherd("steps", job, "--decrypt", "--json", dsn=database, JOBHERD_KEYS=KEYS)
    assert opened.json[0]["result"] == {"card": "4111"}


def test_a_signal_is_sent_to_a_job_or_a_topic(database):
    job = put(database)
    first = jobherd("signal", "approved", '{"by": "ada"}', "--job", job, dsn=database)
    second = jobherd("signal", "order/7", dsn=database)
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT id, topic, payload FROM jobherd.signals ORDER BY id").fetchall()
    assert rows == [(int(first.out), f"job/{job}/approved", {"by": "ada"}), (int(second.out), "order/7", None)]
    assert jobherd("signal", "approved", "--job", 4711, dsn=database).code == 1
    assert "not a JSON value" in jobherd("signal", "approved", "{", dsn=database).err
