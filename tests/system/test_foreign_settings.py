"""Settings that an application or its database applies to all sessions do not affect Jobherd's statements.

They are adapters of the driver, settings of roles, and functions in the search path.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd import Client
from tests.support.herd import Herd

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = """
import psycopg
from psycopg.types.json import JsonbDumper
from psycopg.types.string import StrDumper

class Refusing(psycopg.adapt.Dumper):
    def dump(self, value):
        raise TypeError("not by this one")

class Odd(psycopg.adapt.Loader):
    format = psycopg.pq.Format.BINARY

    def load(self, data):
        return "odd"

class OddText(Odd):
    format = psycopg.pq.Format.TEXT

for each in (list, dict, tuple):
    psycopg.adapters.register_dumper(each, JsonbDumper)
for each in (int, float, bool, str, bytes, type(None)):
    psycopg.adapters.register_dumper(each, Refusing)
for name in ("int2", "int4", "int8", "text", "varchar", "bool", "float8", "timestamptz", "json", "jsonb", "numeric", "name"):
    psycopg.adapters.register_loader(name, Odd)
    psycopg.adapters.register_loader(name, OddText)
"""
HANDLERS = (
    ADAPTERS
    + """
from jobherd import Job, handler

@handler("f:plain", queue="one")
def plain(n: int) -> int:
    return n

@handler("f:moved", queue="two", transactional=True)
def moved(job: Job, n: int) -> int:
    job.progress(0.5)
    return n
"""
)
PRODUCER = (
    ADAPTERS
    + """
import asyncio, sys
from jobherd import AsyncClient, Client, enqueue_on

dsn = sys.argv[1]

async def later(ids):
    async with AsyncClient(dsn) as client:
        return [await client.enqueue("f:plain", {"n": 3}, delay="1s"), *[row["result"] for row in (await client.wait_many(ids)).values()]]

with Client(dsn) as client:
    ids = [client.enqueue("f:plain", {"n": 1}, priority=3), *client.enqueue_many("f:moved", ({"n": n} for n in range(3)))]
    with psycopg.connect(dsn) as own:
        ids.append(enqueue_on(own, "f:plain", {"n": 9}))
    rows = client.wait_many(ids, timeout=120)
    assert [isinstance(number, int) for number in ids] == [True] * 5, ids
    assert [rows[number]["state"] for number in ids] == ["completed"] * 5, rows
    last, *results = asyncio.run(later(ids))
    assert sorted(results) == [0, 1, 1, 2, 9], results
    assert client.wait(last, timeout=120)["result"] == 3
"""
)


@pytest.fixture
def foreign(database):
    """The DSN of a role with its own settings.

    The public schema of the database has a function that matches better than PostgreSQL's.
    """
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS t_foreign, t_tenant")
        connection.execute("CREATE ROLE t_foreign LOGIN IN ROLE jobherd_work, jobherd_enqueue, jobherd_read")
        connection.execute("CREATE TABLE public.stolen (what text); GRANT INSERT ON public.stolen TO PUBLIC")
        connection.execute(
            "CREATE FUNCTION public.array_position(text[], text) RETURNS integer LANGUAGE sql AS "
            "$$ INSERT INTO public.stolen VALUES ($2); SELECT 1 $$"
        )
        connection.execute("CREATE ROLE t_tenant")
        # from now on, tables have row security policies
        connection.execute("SELECT jobherd.grant_tenant('t_tenant', 'acme')")
        connection.execute("ALTER ROLE t_foreign SET search_path = public")
        yield make_conninfo(database, user="t_foreign")
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 't_foreign'")
        connection.execute("DROP OWNED BY t_tenant; DROP OWNED BY t_foreign; DROP ROLE t_foreign, t_tenant")


@pytest.mark.timeout(300)
def test_adapters_that_an_application_registers_globally_do_not_affect_jobherd(database, foreign, tmp_path):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with Herd(foreign, tmp_path, "--queues", "one,two") as herd:
        herd.wait_ready()
        run = subprocess.run(
            [sys.executable, "-c", PRODUCER, foreign],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert run.returncode == 0, run.stderr
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT what FROM public.stolen").fetchall() == []


@pytest.mark.timeout(300)
def test_jobs_run_although_the_role_has_row_security_switched_off(database, foreign, tmp_path):
    (tmp_path / "jobs.py").write_text(HANDLERS.removeprefix(ADAPTERS))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER ROLE t_foreign SET row_security = off")
    with Herd(foreign, tmp_path) as herd, Client(foreign) as client:
        herd.wait_ready()
        ids = [
            client.enqueue("f:plain", {"n": 1}),
            client.enqueue("f:moved", {"n": 2}),
            client.enqueue("f:plain", {"n": 3}, delay="1s"),
        ]
        assert [row["result"] for row in client.wait_many(ids, timeout=120).values()] == [1, 2, 3]
        assert herd.stop() == 0


CHOOSY = """
from jobherd import Only, before_claim, handler

@before_claim
def mine(child):
    return Only(condition="is_mine(queue)")

@handler("f:plain")
def plain(n: int) -> int:
    return n
"""
PLAIN = CHOOSY[CHOOSY.index("@handler") :]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "source", [CHOOSY, "from jobherd import handler\n\n" + PLAIN], ids=["a condition", "a trigger"]
)
def test_conditions_and_triggers_of_an_application_resolve_names_in_its_search_path(
    database, foreign, tmp_path, source
):
    (tmp_path / "jobs.py").write_text(source)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP FUNCTION public.array_position(text[], text)")
        connection.execute(
            "CREATE FUNCTION public.is_mine(text) RETURNS boolean LANGUAGE sql AS $$ SELECT $1 <> 'theirs' $$"
        )
        if source != CHOOSY:
            connection.execute(
                "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN IF is_mine(NEW.queue) THEN INSERT INTO stolen VALUES (NEW.kind); END IF; RETURN NULL; END $$"
            )
            connection.execute(
                "CREATE TRIGGER note AFTER INSERT ON jobherd.history FOR EACH ROW EXECUTE FUNCTION public.note()"
            )
        with Herd(foreign, tmp_path) as herd, Client(foreign) as client:
            herd.wait_ready()
            job = client.enqueue("f:plain", {"n": 1})
            assert client.wait(job, timeout=120)["result"] == 1
            assert not [event.line for event in herd.events if event.record.get("level") in {"error", "critical"}]
        if source != CHOOSY:
            assert connection.execute("SELECT what FROM public.stolen").fetchall() == [("f:plain",)]


DYING = """
import os, signal
from jobherd import Job, handler

@handler("f:dies")
def dies(job: Job) -> int:
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.attempt
"""


@pytest.mark.timeout(300)
def test_trigger_created_while_a_supervisor_runs_resolves_names_in_the_search_path(database, foreign, tmp_path):
    """The search path of older sessions was fixed before.

    These are the worker's session, which writes the outcome, and the supervisor's, which records the crash.
    """
    (tmp_path / "jobs.py").write_text(DYING)
    with (
        psycopg.connect(database, autocommit=True) as connection,
        Herd(foreign, tmp_path, workers=1) as herd,
        Client(foreign) as client,
    ):
        herd.wait_ready()
        connection.execute("CREATE FUNCTION public.is_mine(text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$")
        connection.execute(
            "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF is_mine('') THEN INSERT INTO stolen VALUES (TG_TABLE_NAME); END IF; RETURN NULL; END $$"
        )
        for table in ("history", "attempts"):
            connection.execute(
                f"CREATE TRIGGER note AFTER INSERT ON jobherd.{table} FOR EACH STATEMENT EXECUTE FUNCTION public.note()"
            )
        connection.execute("DROP FUNCTION public.array_position(text[], text)")
        job = client.enqueue("f:dies")
        row = client.wait(job, timeout=120)
        assert (row["state"], row["result"], row["crashes"]) == ("completed", 2, 1)
        assert {what for (what,) in connection.execute("SELECT what FROM public.stolen").fetchall()} == {
            "history",
            "attempts",
        }
