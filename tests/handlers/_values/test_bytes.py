"""Bytes beside the payload.

From the call that enqueues them to the handler's parameter, and what happens where they do not fit.
"""

from __future__ import annotations

import psycopg
import pytest

from jobherd import Client, Job, PayloadError, enqueue_many_on, handler
from jobherd.testing import inline, run

DATA = b"\x89PNG\x00\xff"


@handler("image:store")
def store(payload_bytes: bytes, name: str = "") -> str:
    return f"{name} {payload_bytes.hex()}"


@handler("image:maybe")
def maybe(payload_bytes: bytes | None = None) -> bool:
    return payload_bytes is None


@handler("image:looks")
def looks(job: Job) -> str:
    return f"{job.tenant} {job.webhook} {job.payload_bytes!r}"


@handler("image:blind")
def blind() -> None: ...


@pytest.mark.promise("D34", "D36")
def test_they_reach_the_handler_untouched(database: str):
    with inline(database) as jobs:
        jobs.connection.execute("SELECT jobherd.enable_webhooks()")
        store.enqueue(payload_bytes=DATA, name="logo")
        looks.options(tenant="acme", webhook="https://example.com/done").enqueue()
        jobs.client.enqueue("image:looks", payload_bytes=DATA)
        jobs.client.enqueue("image:blind", payload_bytes=DATA)
        jobs.client.enqueue("image:store", {"name": "x"})
        maybe.enqueue()
        ran = [job.ran[0] for job in jobs.drain([store, looks, blind, maybe])]
        found = jobs.connection.execute("SELECT (extras).payload_bytes FROM jobherd.ready ORDER BY id").fetchall()
    assert [one.result for one in ran] == [
        f"logo {DATA.hex()}",
        "acme https://example.com/done None",
        f"None None {DATA!r}",
        None,
        None,
        True,
    ]
    assert [one.outcome.label for one in ran] == ["ok", "ok", "ok", "poison", "poison", "ok"]
    assert "neither a parameter payload_bytes nor one that takes the Job" in (ran[3].outcome.error or "")
    assert "the job has no payload_bytes" in (ran[4].outcome.error or "")
    assert [row[0] for row in found] == [DATA, None, DATA, DATA, None, None]


def test_without_a_database():
    assert run(store, payload_bytes=DATA, name="a").result == f"a {DATA.hex()}"
    assert run(maybe).result is True


def test_wrong_bytes_are_refused_where_they_are_given(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        with pytest.raises(TypeError, match="payload_bytes must be bytes, not a str"):
            client.enqueue("image:looks", payload_bytes="text")
        with pytest.raises(PayloadError, match="payload_bytes at"):
            client.enqueue("image:looks", payload_bytes=b"x" * 1_000_001)
        with pytest.raises(TypeError, match="one job's own"):
            enqueue_many_on(connection, "image:looks", [{}], payload_bytes=DATA)
        with pytest.raises(TypeError, match="needs payload_bytes of its own"):
            store.options(connection=connection).enqueue_many([{"name": "x"}])
        with pytest.raises(TypeError, match="needs 'payload_bytes'"):
            store.options(connection=connection).enqueue(name="x")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="by name"):
            store.options(connection=connection).enqueue(DATA, "x")


def test_wrong_tenants_and_webhooks_name_the_field(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        with pytest.raises(ValueError, match="tenant 'a b' is not a name"):
            client.enqueue("a:b", tenant="a b")
        with pytest.raises(ValueError, match="webhook must be a URL"):
            client.enqueue("a:b", webhook="https://me:secret@example.com")


def test_many_jobs_of_a_tenant_are_all_its_own(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        assert len(client.enqueue_many("a:b", ({"n": n} for n in range(2500)), tenant="acme")) == 2500
        assert connection.execute("SELECT count(*) FROM jobherd.jobs WHERE tenant = 'acme'").fetchone() == (2500,)
