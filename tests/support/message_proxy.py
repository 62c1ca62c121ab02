"""A proxy in front of a gateway that can cut a connection before or after a chosen message of a stream.
with MessageProxy(where) as proxy:
        worker = client.stream(proxy.where)
        proxy.cut("up", "results", delivered=False)  # the next ResultBatch does not arrive, and its connection ends
        proxy.wait_cut()
        proxy.silence("down")                        # nothing more arrives there on the present connections
        other = proxy.entrance()                     # another address with separate cuts

`up` is from the client to the gateway. The kinds are the names of the events in `worker.proto`. If
the message counts as delivered, its receiver gets all of it and then the end of the connection, and
its sender gets a reset. Otherwise both get a reset, and nothing of the message has arrived.

The proxy is a separate process, because the tests fork: `message_relay.py`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import Any, Self

from tests.support.checkout import import_path
from tests.support.patience import LIMIT


class Entrance:
    """An address of the proxy."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._port = process.ask(do="open")["port"]
        self.where = f"127.0.0.1:{self._port}"

    def cut(self, way: str, kind: str, *, delivered: bool) -> None:
        """End the connection of the next message of this kind, once: after it if `delivered`, otherwise before."""
        self._process.ask(do="cut", port=self._port, cut={"way": way, "kind": kind, "delivered": delivered})

    def silence(self, way: str) -> None:
        """Stop relaying in one direction, for the present connections."""
        self._process.ask(do="silence", port=self._port, way=way)

    def wait_cut(self) -> None:
        """Wait until a connection of this address was cut."""
        self._process.wait_cut(self._port)


class MessageProxy(Entrance):
    """The test's side: starts the relay process and opens its first address."""

    def __init__(self, target: str) -> None:
        super().__init__(_Process(target))

    def entrance(self) -> Entrance:
        """Open another address."""
        return Entrance(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()


class _Process:
    """The relay process. It answers each command with a line, and also reports each cut."""

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.message_relay", target],
            env=os.environ | {"PYTHONPATH": import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""
        self._cut: set[int] = set()

    def ask(self, **order: object) -> dict[str, Any]:
        """Send a command; return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        while "cut" in (answer := self._hear()):
            self._cut.add(answer["cut"])
        return answer

    def wait_cut(self, port: int) -> None:
        while port not in self._cut:
            self._cut.add(self._hear()["cut"])

    def end(self) -> None:
        with self._process:
            self._process.kill()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            assert select.select([fd], [], [], LIMIT)[0], "no answer from the proxy: no such message has passed"
            data = os.read(fd, 65536)
            assert data, "the proxy has ended"
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return dict(json.loads(line))
