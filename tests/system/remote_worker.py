"""A remote worker in a separate process: `python -m tests.system.remote_worker ADDRESS FILE [CONCURRENCY [BATCH]]`.

When it has handled a task, it appends the number in the payload to the file, as an effect outside the
database. A task of the kind `r:hold` waits until it is canceled.
"""

from __future__ import annotations

import os
import sys
import threading

from jobherd import Nack, Poison, Snooze
from jobherd.remote import Task, Worker

ADDRESS, FILE, CONCURRENCY, BATCH = sys.argv[1], sys.argv[2], *([*sys.argv[3:], "4", "1"][:2])
DONE = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def handle(task: Task) -> object:
    match task.kind:
        case "r:hold":
            os.write(DONE, b"held\n")
            while not task.cancelled:
                threading.Event().wait(0.01)
            raise ValueError("stopped")
        case "r:fail":
            raise KeyError("x")
        case "r:poison":
            raise Poison("never", code="BAD")
        case "r:nack":
            return Nack("1h", "later")
        case "r:snooze":
            return Snooze("1h")
    os.write(DONE, f"{task.payload['n']}\n".encode())
    return {"next": task.payload["n"] + 1, "bytes": len(task.payload_bytes or b"")}


if __name__ == "__main__":
    worker = Worker(ADDRESS, queues=["far"], worker_id="outpost", concurrency=int(CONCURRENCY), batch=int(BATCH))
    worker.run(handle)
    print("left", flush=True)
