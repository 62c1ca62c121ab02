"""Bytes sent in addition to the payload.

They are tested from the enqueue call to the handler's parameter, including invalid ones.
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
def test_payload_bytes_reach_the_handler_unchanged(database: str):
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


def test_payload_bytes_work_in_tests_without_a_database():
    assert run(store, payload_bytes=DATA, name="a").result == f"a {DATA.hex()}"
    assert run(maybe).result is True


def test_invalid_payload_bytes_are_rejected_on_enqueue(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        with pytest.raises(TypeError, match="payload_bytes must be bytes, not a str"):
            client.enqueue("image:looks", payload_bytes="text")
        with pytest.raises(PayloadError, match="payload_bytes at"):
            client.enqueue("image:looks", payload_bytes=b"x" * 1_000_001)
        with pytest.raises(TypeError, match="belong to one job"):
            enqueue_many_on(connection, "image:looks", [{}], payload_bytes=DATA)
        with pytest.raises(TypeError, match="needs its own payload_bytes"):
            store.options(connection=connection).enqueue_many([{"name": "x"}])
        with pytest.raises(TypeError, match="needs 'payload_bytes'"):
            store.options(connection=connection).enqueue(name="x")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="by name"):
            store.options(connection=connection).enqueue(DATA, "x")


def test_error_for_an_invalid_tenant_or_webhook_names_the_field(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        with pytest.raises(ValueError, match="tenant 'a b' is not a name"):
            client.enqueue("a:b", tenant="a b")
        with pytest.raises(ValueError, match="webhook must be a URL"):
            client.enqueue("a:b", webhook="https://me:secret@example.com")


def test_enqueue_many_stores_the_tenant_of_every_job(database: str):
    with psycopg.connect(database) as connection, Client(connection=connection) as client:
        assert len(client.enqueue_many("a:b", ({"n": n} for n in range(2500)), tenant="acme")) == 2500
        assert connection.execute("SELECT count(*) FROM jobherd.jobs WHERE tenant = 'acme'").fetchone() == (2500,)
