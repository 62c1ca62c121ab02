"""Run remote workers that take tasks from StreamJobs and report each TaskBatch in a call, for benchmarks.

    python -m tests.bench.gateway_calls WHERE WORKERS COUNT

Each worker has its own connection and at most COUNT tasks at a time. If a task's kind contains `stamp`,
its result is the time at which it arrived. The process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.schema import DISPATCH

OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def result_of(task: m.Task) -> m.Result:
    now = time.time()
    value = json.dumps(now).encode() if task.kind == "bench:stamp" else b""
    return m.Result(task_id=task.id, claim=task.claim, ran_seconds=0.0, completed=m.Completed(result=value))


async def work(where: str, name: str, count: int, opened: asyncio.Event) -> None:
    async with grpc.aio.insecure_channel(where, OPTIONS) as channel:
        report = client_call(channel, DISPATCH.methods["ReportResult"])
        session = ""
        stream = client_call(channel, DISPATCH.methods["StreamJobs"])
        async for response in stream(m.StreamJobsRequest(worker_id=name, max_in_flight=count)):
            match response.WhichOneof("event"):
                case "opened":
                    session = response.opened.session
                    opened.set()
                case "tasks":
                    await report(
                        m.ReportResultRequest(session=session, results=list(map(result_of, response.tasks.tasks)))
                    )


async def main() -> None:
    where, workers, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    events = [asyncio.Event() for _ in range(workers)]
    working = [asyncio.create_task(work(where, f"bench-{number}", count, each)) for number, each in enumerate(events)]
    for each in events:
        await each.wait()
    print("ready", flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait((*working, ended), return_when=asyncio.FIRST_COMPLETED)
    for each in working:
        if each.done():
            each.result()
        each.cancel()


if __name__ == "__main__":
    asyncio.run(main())
