"""Run a remote worker whose jobs do nothing, with SLOTS slots of COUNT tasks, for benchmarks.

    python -m tests.bench.gateway_client WHERE SLOTS COUNT

It decodes each task, calls a function for it, and reports a result and the slot's next Ready in one
message. It ends when its standard input does. It is not tuned: its cost is part of the figure, as it
is with a real client.
"""

from __future__ import annotations

import asyncio
import sys
import time

import grpc

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.schema import WORKER


def noop(task: m.Task) -> None:
    """Do nothing."""


async def work(where: str, slots: int, count: int) -> None:
    async with grpc.aio.insecure_channel(where) as channel:
        call = client_call(channel, WORKER.methods["Work"])()
        await call.write(m.WorkRequest(hello=m.Hello(worker_id="bench", client="bench")))
        assert (await call.read()).WhichOneof("event") == "hello_ack"
        number = 0
        for number in range(1, slots + 1):
            await call.write(m.WorkRequest(ready=m.Ready(number=number, count=count)))
        print("ready", flush=True)
        batches = 0
        while True:
            response = await call.read()
            if response is grpc.aio.EOF:
                return
            if response.WhichOneof("event") != "tasks":
                continue
            results = []
            for task in response.tasks.tasks:
                begun = time.monotonic()
                noop(task)
                results.append(
                    m.Result(
                        task_id=task.id,
                        claim=task.claim,
                        ran_seconds=time.monotonic() - begun,
                        completed=m.Completed(),
                    )
                )
            batches += 1
            number += 1
            await call.write(
                m.WorkRequest(
                    results=m.ResultBatch(number=batches, results=results, ready=m.Ready(number=number, count=count))
                )
            )


async def main() -> None:
    where, slots, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(work(where, slots, count))
    ended = loop.run_in_executor(None, sys.stdin.read)
    await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
    working.cancel()


if __name__ == "__main__":
    asyncio.run(main())
