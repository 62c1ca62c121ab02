"""The adapter of PgQueuer, on asyncpg and uvloop, in large batches for a drain and small ones for a start."""

import asyncio
import contextlib
import json

import asyncpg
import notes
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BATCH = {"drain": 1000, "start": 10}


def setup():
    async def install():
        connection = await asyncpg.connect(notes.DSN)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    uvloop.run(install())


def load(count):
    async def put():
        connection = await asyncpg.connect(notes.DSN)
        queries = Queries(AsyncpgDriver(connection))
        for part in notes.slices(count):
            await queries.enqueue(["noop"] * len(part), [json.dumps(each).encode() for each in part], [0] * len(part))
        await connection.close()

    uvloop.run(put())


def work(purpose):
    async def serve():
        connection = await asyncpg.connect(notes.DSN)
        queue = PgQueuer.from_asyncpg_connection(connection)

        @queue.entrypoint("noop")
        async def noop(job):
            json.loads(job.payload)
            notes.noop()

        @queue.entrypoint("stamp")
        async def stamp(job):
            notes.stamp(json.loads(job.payload)["n"])

        await queue.run(**({"batch_size": BATCH[purpose]} if purpose in BATCH else {}))

    uvloop.run(serve())


@contextlib.contextmanager
def offering():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(notes.DSN))
        queries = Queries(AsyncpgDriver(connection))
        yield lambda payload: runner.run(queries.enqueue("stamp", json.dumps(payload).encode()))
        runner.run(connection.close())


notes.main(setup, load, work, offering)
