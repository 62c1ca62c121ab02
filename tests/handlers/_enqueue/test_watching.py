"""`watch` yields each change of a job and ends when the job is finished."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from jobherd import AsyncClient, Client


@pytest.fixture
def change(database):
    """Runs statements in their own transaction."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection.execute


def test_watch_yields_each_change_once_and_ends_with_the_final_state(database, change):
    with Client(database) as client:
        job = client.enqueue("mail:receipt")
        rows = client.watch(job, every="10ms")
        assert next(rows)["state"] == "ready"
        change("SELECT jobherd.reprioritize(%s, 7)", [job])  # watch does not report priorities
        client.cancel(job)
        assert next(rows)["state"] == "cancelled"
        assert list(rows) == []
        with pytest.raises(LookupError, match="job 99999 not found$"):
            next(client.watch(99999))
        with pytest.raises(ValueError, match="every"):
            next(client.watch(job, every=0))


def test_async_watch_yields_changes_and_raises_lookup_error_if_the_job_disappears(database, change):
    async def run() -> list[tuple[str, str | None]]:
        seen = []
        async with AsyncClient(database) as client:
            job = await client.enqueue("mail:receipt")
            async for row in client.watch(job, every="10ms"):
                seen.append(row["state"])
                if len(seen) == 1:
                    change("DELETE FROM jobherd.ready WHERE id = %s", [job])
        return seen

    with pytest.raises(LookupError, match="any more: nothing of it was kept"):
        asyncio.run(run())
