"""Costs of jobs, from enqueue to the table that claims read."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from jobherd import AsyncClient, Client, enqueue_on, handler


@handler("cost:plain", cost={"memory_mb": 900})
def plain(n: int = 0) -> None: ...


@handler("cost:computed", cost=lambda payload: {"memory_mb": payload["n"] * 2})
def computed(n: int) -> None: ...


@handler("cost:wrong", cost=lambda payload: {"memory_mb": -payload["n"]})
def wrong(n: int) -> None: ...


def costs(database):
    with psycopg.connect(database) as connection:
        return dict(connection.execute("SELECT job, cost -> 'memory_mb' FROM jobherd.demands"))


def test_cost_is_stored_with_a_job_only_if_it_differs_from_the_fixed_cost_of_its_kind(database):
    with Client(database) as client:
        plain.options(client=client).enqueue()
        assert costs(database) == {}
        ids = [
            computed.options(client=client).enqueue(n=4),
            *computed.options(client=client, delay="1h").enqueue_many([(5,), {"n": 6}]),
            plain.options(client=client, cost={"memory_mb": 1.5}).enqueue(),
            computed.options(client=client, cost={"memory_mb": 7}).enqueue(n=4),
            client.enqueue("cost:plain", cost={"memory_mb": 9}),
            *client.enqueue_many("cost:plain", [{}, {}], cost={"memory_mb": 11}),
        ]
    assert list(costs(database).values()) == [8, 10, 12, 1.5, 7, 9, 11, 11]
    assert sorted(costs(database)) == sorted(ids)


def test_copied_jobs_have_their_computed_costs(database):
    with Client(database) as client:
        ids = computed.options(client=client).enqueue_many((n,) for n in range(2500))
    assert costs(database) == {job: 2 * n for n, job in enumerate(ids)}


def test_job_and_its_cost_are_enqueued_together_or_not_at_all(database):
    with psycopg.connect(database) as connection:
        enqueue_on(connection, "cost:plain", {}, cost={"memory_mb": 1})
        connection.rollback()
    assert costs(database) == {}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE jobherd.demands")
        with pytest.raises(psycopg.errors.UndefinedTable):
            enqueue_on(connection, "cost:plain", {}, cost={"memory_mb": 1})
        assert connection.execute("SELECT count(*) FROM jobherd.ready").fetchone() == (0,)


def test_job_on_a_pipeline_connection_has_its_cost(database):
    with psycopg.connect(database, autocommit=True) as connection, connection.pipeline():
        job = enqueue_on(connection, "cost:plain", {}, cost={"memory_mb": 3})
    assert costs(database) == {job: 3}


def test_async_client_stores_the_computed_cost(database):
    async def enqueue():
        async with AsyncClient(database) as client:
            return await computed.options(client=client).aenqueue(n=3)

    job = asyncio.run(enqueue())
    assert costs(database) == {job: 6}


def test_invalid_cost_is_rejected(database):
    with pytest.raises(ValueError, match=r"cost\['memory_mb'\] must be a number of 0 or more, not -4"):
        wrong.enqueue(n=4)
    with pytest.raises(TypeError, match="cost must be a dict of amounts"):
        handler("cost:bad", cost=900)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="cost: 'Memory' is not a name"):
        plain.options(cost={"Memory": 1})
