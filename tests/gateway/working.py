"""Workers of `jobherd.remote` in a separate process, with a handler that the test controls.

    with Working(where, "w:job") as worker:
        worker.wait_started(job)
        worker.go(job)          # the handler of a job with the payload {"wait": true} returns
        assert worker.stop() == 0

`more` are further workers of the process, each with its own stream and kind. The payload of a job
controls its handler: `extend` (extend the lease first), and `wait` (until `go`, or until the task is
canceled or lost). The process prints each start and end, so the tests do not rely on the database
to count them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence


class Working:
    """The side of the tests."""

    def __init__(
        self,
        where: str,
        kind: str,
        *,
        more: Sequence[tuple[str, str]] = (),
        slots: int = 1,
        batch: int = 1,
        lease: float = 600.0,
    ) -> None:
        workers = json.dumps([(where, kind), *more])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.working", workers, str(slots), str(batch), str(lease)],
            env=os.environ | {"PYTHONPATH": import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""
        self.started: list[int] = []
        """The jobs whose handlers have started, in order, one entry for each start."""
        self.ended: list[int] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self, job: int) -> None:
        """Let the handler of a job return."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{job}\n".encode())

    def wait_started(self, job: int) -> None:
        while job not in self.started:
            assert self._hear(), f"job {job} does not start: {self.started}"

    def wait_ended(self, job: int) -> None:
        while job not in self.ended:
            assert self._hear(), f"the handler of job {job} does not return: {self.ended}"

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, wait until the process exits, and return its exit code."""
        self._process.send_signal(signum)
        while self._hear():
            pass
        return self._process.wait(LIMIT)

    def _hear(self) -> bool:
        """Read the output of the process. Return False if it has exited."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        assert select.select([fd], [], [], LIMIT)[0], f"the worker prints nothing: {self.started}, {self.ended}"
        data = os.read(fd, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            getattr(self, event["what"]).append(event["job"])
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


def work(workers: str, slots: str, batch: str, lease: str) -> None:
    from jobherd.remote import Task, Worker  # starts threads, so only this process imports it

    may_go: set[int] = set()
    lock = threading.Lock()

    def read() -> None:
        for line in sys.stdin:
            may_go.add(int(line))

    def say(what: str, job: int) -> None:
        with lock:
            print(json.dumps({"what": what, "job": job}), flush=True)

    def handler(task: Task) -> Any:
        say("started", task.id)
        told: Any = task.payload
        if told.get("extend"):
            task.extend(600)
        while told.get("wait") and task.id not in may_go and not task.cancelled:
            time.sleep(0.01)
        say("ended", task.id)
        if task.cancelled:
            raise InterruptedError
        return f"{task.attempt}"

    threading.Thread(target=read, daemon=True).start()
    first, *others = [
        Worker(where, worker_id="steady", kinds=[kind], concurrency=int(slots), batch=int(batch), lease=float(lease))
        for where, kind in json.loads(workers)
    ]
    with ThreadPoolExecutor(len(others) + 1) as threads:
        running = [threads.submit(other.run, handler) for other in others]
        first.run(handler)  # handles the signals of the process
        for other in others:
            other.close()
    for one in running:
        one.result()


if __name__ == "__main__":
    work(*sys.argv[1:])
