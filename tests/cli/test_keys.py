"""`keys`, and the key of a job in `job`: what is held, by which job, and until when."""

from __future__ import annotations

import re

import psycopg

from jobherd import Client, Unique
from tests.cli.rows import send
from tests.cli.shell import jobherd

WAITING = Unique(by=("n",), during="waiting")


def put(database, kind="a:b", n=1, **options):
    with psycopg.connect(database, autocommit=True) as connection:
        return int(Client(connection=connection).enqueue(kind, {"n": n}, **{"unique": ("n",), **options}))


def test_keys_lists_held_keys_newest_first(database):
    live = put(database)
    waiting = put(database, n=2, unique=WAITING, unique_for="30m")
    over = put(database, n=3)
    kept = put(database, "c:d", n=4, unique=Unique(by=("n",), during="never"), unique_for="30m")
    send(database, "SELECT jobherd.cancel(%s), jobherd.cancel(%s)", over, kept)
    keys = jobherd("keys", "--json", dsn=database).json
    assert [(key["job"], key["kind"], key["shown"], key["during"], key["state"]) for key in keys] == [
        (kept, "c:d", '{"n": 4}', "never", "cancelled"),
        (waiting, "a:b", '{"n": 2}', "waiting", "ready"),
        (live, "a:b", '{"n": 1}', "live", "ready"),
    ]
    assert [key["until"] is None for key in keys] == [False, False, True]
    assert all(key["since"] and len(key["key"]) == 64 for key in keys)
    out = jobherd("keys", dsn=database, COLUMNS="200").out
    assert "until it has finished" in out
    assert re.search(r"for \d+ min and until it starts", out)
    assert re.search(r"for \d+ min$", out, re.MULTILINE)
    assert [key["job"] for key in jobherd("keys", "--kind", "c:d", "--json", dsn=database).json] == [kept]
    assert [key["job"] for key in jobherd("keys", "--job", live, "--json", dsn=database).json] == [live]
    assert "there may be more" in jobherd("keys", "--limit", 1, dsn=database).err


def test_key_of_waiting_jobs_is_released_when_the_job_starts(database):
    job = put(database, unique=WAITING)
    send(database, "UPDATE jobherd.ready SET attempts = 1")
    assert jobherd("keys", "--json", dsn=database).json == []
    assert jobherd("job", job, "--json", dsn=database).json["unique"]["holder"] is None
    answer = jobherd("keys", dsn=database)
    assert (answer.code, answer.out, answer.err) == (0, "", "jobherd: no job holds a key\n")


def test_job_shows_its_key_and_which_job_holds_it(database):
    first = put(database)
    assert "which it holds" in jobherd("job", first, dsn=database).out
    send(database, "SELECT jobherd.cancel(%s)", first)
    assert "which no job holds" in jobherd("job", first, dsn=database).out
    second = put(database)
    assert f'{{"n": 1}}, which job {second} holds' in jobherd("job", first, dsn=database).out
    assert jobherd("job", first, "--json", dsn=database).json["unique"]["holder"] == second
    plain = put(database, unique=False)
    assert jobherd("job", plain, "--json", dsn=database).json["unique"] is None


def test_a_throttled_job_shows_its_key_while_no_other_job_has_it(database):
    first = put(database, throttle="1h")
    assert '{"n": 1}, which it holds until 20' in jobherd("job", first, dsn=database).out
    send(database, "SELECT jobherd.cancel(%s)", first)
    assert jobherd("job", first, "--json", dsn=database).json["unique"]["holder"] == first
    send(database, "UPDATE jobherd.keys SET until = clock_timestamp()")
    assert "which no job holds" in jobherd("job", first, dsn=database).out
    second = put(database, throttle="1h")
    assert jobherd("job", second, "--json", dsn=database).json["unique"]["holder"] == second
    assert jobherd("job", first, "--json", dsn=database).json["unique"] is None


def test_a_hidden_key_shows_the_beginning_of_its_hash(database):
    put(database)
    send(database, "UPDATE jobherd.keys SET shown = NULL")
    [key] = jobherd("keys", "--json", dsn=database).json
    assert f"{key['key'][:12]} (hidden)" in jobherd("keys", dsn=database).out
    send(database, "DELETE FROM jobherd.keys")
    assert f"{key['key'][:12]} (deleted), which no job holds" in jobherd("job", key["job"], dsn=database).out
