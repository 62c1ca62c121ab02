"""The adapter of Procrastinate: asynchronous workers on uvloop with ten jobs at once, a synchronous producer."""

import contextlib

import notes
import procrastinate
import uvloop

workers = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=notes.DSN, min_size=4, max_size=16))
producer = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=notes.DSN))
for app in (workers, producer):

    @app.task(name="noop", queue="bench")
    async def noop(**_payload):
        notes.noop()

    @app.task(name="stamp", queue="bench")
    async def stamp(n, **_payload):
        notes.stamp(n)


def setup():
    with producer.open():
        producer.schema_manager.apply_schema()


def load(count):
    with producer.open():
        for part in notes.slices(count):
            producer.tasks["noop"].batch_defer(*part)


def work(_purpose):
    async def serve():
        async with workers.open_async():
            await workers.run_worker_async(queues=["bench"], concurrency=10)

    uvloop.run(serve())


@contextlib.contextmanager
def offering():
    with producer.open():
        yield lambda payload: producer.tasks["stamp"].defer(**payload)


notes.main(setup, load, work, offering)
