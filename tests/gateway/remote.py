"""Remote workers for tests: streams of one client process, controlled message by message."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Message = dict[str, Any]


class Client:
    """The client process. `with Client() as client: worker = client.stream(where)`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.client"],
            # Unbuffered, Python loses the rest of a line if a signal interrupts its write.
            env=os.environ | {"PYTHONPATH": import_path(), "PYTHONUNBUFFERED": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self._names = itertools.count(1)
        self.inbox: dict[str, deque[Message]] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def stream(self, where: str, *metadata: tuple[str, str], patient: bool = False) -> Stream:
        """Open a stream. patient: wait if no server listens there yet."""
        stream = Stream(self, str(next(self._names)))
        self.inbox[stream.name] = deque()
        stream.do("open", where=where, metadata=metadata, patient=patient)
        return stream

    def watch(self, where: str) -> Callable[[], str]:
        """Watch the health. Return a function that waits for its next value."""
        name = str(next(self._names))
        inbox = self.inbox[name] = deque()
        self.order(stream=name, do="watch", where=where)

        def next_health() -> str:
            until = time.monotonic() + LIMIT
            while not inbox:
                if not self.hear(until - time.monotonic()):
                    raise TimeoutError("the health did not change")
            return str(inbox.popleft()["health"])

        return next_health

    def order(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, seconds: float) -> bool:
        """Read the output of the process, and wait for it that long. Return whether there was any."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        if not select.select([fd], [], [], max(0.0, seconds))[0]:
            return False
        data = os.read(fd, 1 << 20)
        assert data, "the client process has exited"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.inbox[event.pop("stream")].append(event)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Stream:
    """One stream."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self.session = ""
        self._readys = itertools.count(1)
        self._batches = itertools.count(1)
        self._beats = itertools.count(1)

    def do(self, what: str, **more: object) -> None:
        self.client.order(stream=self.name, do=what, **more)

    def send(self, **message: object) -> None:
        """Send a message by the name of its event: `send(ready={...})`."""
        self.do("send", message=message)

    # -- messages that the worker sends

    def hello(self, **hello: object) -> Message:
        """Send Hello and return the HelloAck."""
        self.send(hello=hello)
        ack = self.expect("hello_ack")
        self.session = ack["session"]
        return ack

    def ready(self, *kinds: str, count: int = 1, **more: object) -> int:
        number = next(self._readys)
        self.send(ready={"number": number, "kinds": kinds, "count": count, **more})
        return number

    def results(self, *results: Message, **more: object) -> int:
        number = next(self._batches)
        self.send(results={"number": number, "results": results, **more})
        return number

    def beat(self, *tasks: Message, extend: float = 0.0) -> Message:
        """Send a Heartbeat and return its acknowledgement."""
        number = next(self._beats)
        refs = [{"task_id": task["id"], "claim": task["claim"]} for task in tasks]
        self.send(heartbeat={"number": number, "tasks": refs, "extend_seconds": extend})
        return self.expect("heartbeat_ack", lambda ack: int(ack["number"]) == number)

    def end(self, *results: Message) -> Message:
        """Report results and return their acknowledgement."""
        number = self.results(*results)
        return self.expect("result_ack", lambda ack: int(ack["up_to"]) >= number)

    # -- messages that the worker receives

    def expect(self, event: str, wanted: Callable[[Message], bool] = lambda _: True) -> Message:
        """Wait for the next such message and take it. Messages before it stay in the inbox.

        An acknowledgement that came with tasks counts as a separate message.
        """
        until = time.monotonic() + LIMIT
        while True:
            inbox = self.client.inbox[self.name]
            for place, one in enumerate(inbox):
                message = one.get("message", {})
                if event in message and wanted(message[event]):
                    del inbox[place]
                    if event == "tasks" and "ack" in message["tasks"]:
                        inbox.appendleft({"message": {"result_ack": message["tasks"].pop("ack")}})
                    return message[event]  # type: ignore[no-any-return]
                if event == "result_ack" and "ack" in message.get("tasks", {}):
                    found = message["tasks"].pop("ack")
                    if wanted(found):
                        return found  # type: ignore[no-any-return]
                assert "status" not in one, f"waited for {event}; the stream has ended: {one}"
            if not self.client.hear(until - time.monotonic()):
                raise TimeoutError(f"waited {LIMIT} s for {event}; there is {list(inbox)}")

    def tasks(self, number: int | None = None) -> list[Message]:
        """Wait for the next TaskBatch, or that of a Ready, and return its tasks."""
        batch = self.expect("tasks", lambda tasks: number is None or int(tasks["ready"]) == number)
        return batch.get("tasks", [])  # type: ignore[no-any-return]

    def task(self, *kinds: str, **more: object) -> Message:
        """Request one task and wait for it."""
        [task] = self.tasks(self.ready(*kinds, **more))
        return task

    def status(self) -> tuple[str, str]:
        """Wait for the end of the stream. Return its code and details. Messages before it do not matter."""
        until = time.monotonic() + LIMIT
        while True:
            for one in self.client.inbox[self.name]:
                if "status" in one:
                    return one["status"], one["details"] or ""
            if not self.client.hear(until - time.monotonic()):
                raise TimeoutError(f"the stream did not end; there is {list(self.client.inbox[self.name])}")

    def heard(self, event: str) -> list[Message]:
        """Return such messages that have arrived and that `expect` has not taken."""
        return [one["message"][event] for one in self.client.inbox[self.name] if event in one.get("message", {})]


def ref(task: Message) -> Message:
    return {"task_id": task["id"], "claim": task["claim"]}


def result(task: Message, **outcome: object) -> Message:
    """A Result with this outcome: `result(task, completed={})`."""
    return {**ref(task), "ran_seconds": 0.25, **outcome}


def done(task: Message, value: object = None) -> Message:
    body = {} if value is None else {"result": base64.b64encode(json.dumps(value).encode()).decode()}
    return result(task, completed=body)


def reasons(ack: Message) -> dict[int, str]:
    """Return the refusals of an acknowledgement: the reason by task id."""
    return {int(one["task"]["task_id"]): one["reason"] for one in ack.get("refusals", [])}


def ids(tasks: Iterable[Message]) -> list[int]:
    return [int(task["id"]) for task in tasks]
