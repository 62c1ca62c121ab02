"""Commands over several databases."""

from __future__ import annotations

import pytest
from orjson import loads
from psycopg.conninfo import conninfo_to_dict

from tests.cli.rows import send
from tests.cli.shell import jobherd
from tests.cli.terminal import Terminal


def test_migrate_gives_a_database_the_ids_of_its_shard(cluster):
    with cluster.database() as dsn:
        made = jobherd("migrate", "--shard", "2/4", dsn=dsn)
        assert made.out.splitlines()[-1] == "shard 2 of 4: ids from 20000000000000"
        assert jobherd("enqueue", "a:b", "{}", dsn=dsn).out == "20000000000000\n"
        again = jobherd("migrate", "--shard", "2/5", dsn=dsn)  # a fifth database was added
        assert again.out == "up to date\nshard 2 of 5: ids from 20000000000000, as before\n"
        other = jobherd("migrate", "--shard", "3/4", dsn=dsn)
        assert other.code == 2
        assert "this database is shard 2 and has given ids of it: it cannot become shard 3" in other.err
        assert jobherd("enqueue", "a:b", "{}", dsn=dsn).out == "20000000000001\n"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "2/900", "x/y", "2/4/6", "-1/4"])
def test_invalid_shard_is_rejected(text):
    answer = jobherd("migrate", f"--shard={text}", dsn="dbname=x")
    assert answer.code == 2
    assert f"{text!r} is not a shard: write 2/4" in answer.err


@pytest.fixture(scope="module")
def both(cluster):
    with cluster.database() as first, cluster.database() as second:
        for number, dsn in enumerate((first, second), 1):
            assert jobherd("migrate", "--shard", f"{number}/2", dsn=dsn).code == 0
        yield first, second


def name_of(dsn):
    given = conninfo_to_dict(dsn)
    return f"{given['host']}:{given['port']}/{given['dbname']}"


def on(dsns):
    return [f"--dsn={dsn}" for dsn in dsns]


def enqueued(dsn, kind="a:b"):
    return int(jobherd("enqueue", kind, "{}", dsn=dsn).out)


def test_listing_shows_each_database_under_its_name(both):
    for dsn, kind in zip(both, ("here:one", "away:one"), strict=True):
        enqueued(dsn, kind)
    answer = jobherd("jobs", *on(both))
    first, second = answer.out.split("\n\n")
    assert (first.splitlines()[0], second.splitlines()[0]) == tuple(map(name_of, both))
    assert "here:one" in first and "away:one" not in first
    assert "away:one" in second and "here:one" not in second
    for command in ("queues", "status", "limits", "schedules", "flows", "fleet", "doctor"):
        shown = jobherd(command, *on(both), "--json")
        assert [one["database"] for one in loads(shown.out)] == list(map(name_of, both)), shown
    named = jobherd("jobs", "--json", JOBHERD_DSNS=" ".join(map(as_url, both)))
    kinds = [{job["kind"] for job in one["answer"]} for one in loads(named.out)]
    assert "here:one" in kinds[0] - kinds[1]
    assert "away:one" in kinds[1] - kinds[0]


def as_url(dsn):
    given = conninfo_to_dict(dsn)
    return f"postgresql://{given['user']}@/{given['dbname']}?host={given['host']}&port={given['port']}"


def test_json_for_one_database_is_not_grouped_by_database(both):
    for answer in (jobherd("jobs", "--json", dsn=both[0]), jobherd("jobs", "--json", JOBHERD_DSNS=as_url(both[0]))):
        assert all("kind" in job for job in loads(answer.out))


def test_unreachable_database_does_not_hide_the_others(both):
    away = "postgresql://app:hunter2@127.0.0.1:1/x"
    answer = jobherd("queues", f"--dsn={away}", f"--dsn={both[1]}")
    assert answer.code == 69
    assert answer.err.startswith("jobherd: 127.0.0.1:1/x: the database does not answer")
    assert name_of(both[1]) in answer.out
    assert "hunter2" not in answer.out + answer.err


def test_job_id_selects_its_database(both):
    here, there = map(enqueued, both)
    shown = jobherd("job", there, *on(both), "--json")
    assert [(one["database"], one["answer"]["id"]) for one in loads(shown.out)] == [(name_of(both[1]), there)]
    cancelled = jobherd("cancel", there, here, *on(both), "--json")
    assert cancelled.code == 0
    assert [one["answer"] for one in loads(cancelled.out)] == [
        [{"id": here, "answer": "cancelled"}],
        [{"id": there, "answer": "cancelled"}],
    ]
    assert f"{there} " in jobherd("retry", there, *on(both)).out
    lost = jobherd("job", 90_000_000_000_001, *on(both))
    assert lost.code == 1
    assert "job 90000000000001 is in shard 9, which is in none of these databases" in lost.err
    hidden = jobherd("job", here, "--dsn=postgresql://127.0.0.1:1/x", f"--dsn={both[1]}")
    assert hidden.code == 69
    assert f"job {here} is in shard 1, which may be in a database that does not answer" in hidden.err


def test_fleet_command_requires_a_single_database(both):
    answer = jobherd("fleet", "drain", "1", *on(both))
    assert answer.code == 2
    assert "fleet drain is for one database: give one --dsn" in answer.err


def test_top_shows_one_database_at_a_time(both):
    """An unreachable database does not hide the others, and a key acts on the database that is shown."""
    for dsn, queue in zip(both, ("here", "there"), strict=True):
        send(dsn, "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', %s)", queue)
    away = "postgresql://app:hunter2@127.0.0.1:1/x"
    with Terminal("top", f"--dsn={away}", *on(both), dsn=both[0], columns=160) as seen:
        seen.wait("127.0.0.1:1/x (1 of 3, d shows the next)", "the database is away since")
        for dsn, queue, number in ((both[0], "here", 2), (both[1], "there", 3)):
            seen.on_key("d")
            seen.wait(f"{name_of(dsn)} ({number} of 3", lambda queue=queue: seen.line(f"{queue} "))
            assert "is away" not in seen.text
        assert not seen.line("here ")
        seen.on_key("2/there\r")
        seen.wait("filter: there")
        seen.on_key("p")
        seen.wait("pause the queue there")
        seen.on_key("\r")
        seen.wait("the queue there is paused")
        assert [send(dsn, "SELECT name FROM jobherd.gates WHERE paused_at IS NOT NULL") for dsn in both] == [
            [],
            [("there",)],
        ]
        seen.on_key("d")
        seen.wait("(1 of 3", "the database is away since")
        seen.on_key("q")
        assert seen.wait_exit() == 0
        assert b"hunter2" not in seen.raw
    once = jobherd("top", "--once", JOBHERD_DSNS=" ".join(map(as_url, both)))
    assert once.code == 0
    first, second = once.out.split(name_of(both[1]), 1)
    assert first.startswith(name_of(both[0])) and "here" in first and "there" not in first and "there" in second
