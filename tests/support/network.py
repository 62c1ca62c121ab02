"""A TCP proxy between clients and PostgreSQL that imitates network faults, by the sessions' application names.
with Network(dsn) as network:
        fleet = stage.run_fleet(dsn=network.dsn)
        network.blackhole("jobherd:supervisor:*")           # half-open: nothing passes
        network.heal()                                      # delayed data arrives
        network.stall("jobherd:supervisor:*")               # a permanent blackhole, only for present sessions
        network.cut("jobherd:worker:*")                     # connection reset on both sides
        network.slow("*", latency=0.2, bandwidth=10_000, crumbs=True)
        network.refuse("jobherd:supervisor:*", "LISTEN")    # answered with an error instead, until heal()
        network.arm("jobherd:worker:*", "claim/claim_jobs", where="answered", action="cut")
        network.wait_hit()                                  # the server has committed, but the client gets no answer

`arm` sets a trap for the next message of a client that contains a word: the name of a prepared
statement, or text of a statement. `where`:

* `before`: the message does not reach the server,
* `torn`: half of the message arrives,
* `answered`: the server has answered up to ReadyForQuery, but the client gets nothing.

`action`: `cut`; `stall`, a permanent blackhole for that connection; or `garble`, an answer that is not PostgreSQL's
protocol. The proxy is a separate process, because the tests fork.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.herd import ROOT

PATIENCE = 60.0
CHUNK = 8192
"""Small buffers, so that a slow line blocks the sender, as a slow network does."""
TLS, GSS, CANCEL = 80877103, 80877104, 80877102
READY = b"Z\0\0\0\5"
"""The message ReadyForQuery without its last byte, which shows whether a transaction is open."""
GARBAGE = b"HTTP/1.1 502 Bad Gateway\r\n\r\n"
REFUSAL = b"SERROR\0VERROR\0C0A000\0Mrefused by the network\0\0"


class Network:
    """The test's side of the proxy. Patterns are those of fnmatch and match application names."""

    def __init__(self, dsn: str, *, address: str = "127.0.0.1", port: int = 0) -> None:
        self.events: list[list[str]] = []
        """Events, oldest first: ["opened", name], ["closed", name], ["hit", name], ["refused", name]."""
        ours, theirs = socket.socketpair()
        self._control = ours
        self._rest = b""
        self._replies: list[Any] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.network", str(theirs.fileno()), dsn, address, str(port)],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._dsn = dsn
        self.port = int(self._reply())
        self.dsn = self.at(address)

    def at(self, host: str) -> str:
        """Return a DSN through the proxy, with another name of this host."""
        return make_conninfo(self._dsn, host=host, port=self.port, sslmode="disable", gssencmode="disable")

    def blackhole(self, pattern: str = "*") -> None:
        """Let nothing pass, including new sessions, until `heal`."""
        self._ask("blackhole", pattern)

    def heal(self) -> None:
        """End blackholes, slowness and refusals. Stalled sessions stay stalled."""
        self._ask("heal")

    def stall(self, pattern: str = "*") -> int:
        """Block the present sessions permanently; return their number."""
        return int(self._ask("stall", pattern))

    def cut(self, pattern: str = "*") -> int:
        """Reset the connections of the present sessions; return their number."""
        return int(self._ask("cut", pattern))

    def slow(self, pattern: str = "*", *, latency: float = 0.0, bandwidth: float = 0.0, crumbs: bool = False) -> None:
        """Slow sessions down until `heal`.

        Args:
            pattern: the sessions.
            latency: seconds for each chunk, in each direction.
            bandwidth: bytes a second; 0: no limit.
            crumbs: send one byte for each packet.
        """
        self._ask("slow", pattern, latency, bandwidth, crumbs)

    def refuse(self, pattern: str, word: str) -> None:
        """Answer each message that contains a word with an error, without sending it to the server, until `heal`."""
        self._ask("refuse", pattern, word)

    def arm(self, pattern: str, word: str, *, where: str, action: str = "cut") -> None:
        """Set a trap for the next message with this word: see the module's docstring."""
        self._ask("arm", pattern, word, where, action)

    def names(self) -> list[str]:
        """Return the application names of the present sessions."""
        return list(self._ask("names"))

    def count(self, what: str, pattern: str = "*") -> int:
        """Return the number of such events so far. Only `wait` and commands to the proxy read new events."""
        return sum(kind == what and fnmatch.fnmatchcase(name, pattern) for kind, name in self.events)

    def wait(self, what: str, pattern: str = "*", *, more_than: int = 0, timeout: float = PATIENCE) -> None:
        """Wait until there are more than `more_than` such events."""
        until = time.monotonic() + timeout
        while self.count(what, pattern) <= more_than:
            if not self._read(until - time.monotonic()):
                raise TimeoutError(
                    f"waited {timeout} s for more than {more_than} events {what!r} of {pattern}: {self.events[-20:]}"
                )

    def wait_hit(self, *, more_than: int = 0) -> None:
        """Wait until a trap was hit and its action has happened."""
        self.wait("hit", more_than=more_than)

    def _ask(self, *words: object) -> Any:
        self._control.sendall(json.dumps(words).encode() + b"\n")
        return self._reply()

    def _reply(self) -> Any:
        until = time.monotonic() + PATIENCE
        while not self._replies:
            if not self._read(until - time.monotonic()):
                raise TimeoutError("the process of the network does not answer")
        return self._replies.pop(0)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._control], [], [], max(seconds, 0.0))[0]:
            return False
        data = self._control.recv(65536)
        if not data:
            raise EOFError("the process of the network has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = json.loads(line)
            if "reply" in found:
                self._replies.append(found["reply"])
            else:
                self.events.append(found["event"])
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the proxy: every connection breaks, and no new one is accepted."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # processes that the test has forked hold it open too
        self._control.close()
        self._process.wait(PATIENCE)


# -- the process


@dataclass
class Slowness:
    pattern: str
    latency: float
    bandwidth: float
    crumbs: bool


@dataclass
class Trap:
    pattern: str
    word: bytes
    where: str
    action: str


@dataclass(eq=False)
class Line:
    """The connections of one client: to the client and to the server."""

    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    name: str = ""
    stalled: bool = False
    losing: Trap | None = None
    tail: bytes = b""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def reset(self) -> None:
        for _, writer in (self.client, self.server):
            with suppress(OSError):
                there = writer.get_extra_info("socket")
                if there.family != socket.AF_UNIX:
                    there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for task in self.tasks:
            task.cancel()


class Relay:
    def __init__(self, control: socket.socket, dsn: str) -> None:
        self.control = control
        given = conninfo_to_dict(dsn)
        self.host, self.port = str(given["host"]), int(str(given.get("port") or 5432))
        self.lines: list[Line] = []
        self.holes: list[str] = []
        self.slowness: Slowness | None = None
        self.traps: list[Trap] = []
        self.refusals: list[tuple[str, bytes]] = []
        self.changed = asyncio.Event()

    def tell(self, **what: object) -> None:
        with suppress(OSError):
            self.control.sendall(json.dumps(what).encode() + b"\n")

    async def serve(self, address: str, port: int) -> None:
        door = socket.socket()
        # otherwise the kernel would buffer half a megabyte at once, which hides a slow line
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
        door.bind((address, port))
        server = await asyncio.start_server(self.accept, sock=door, limit=CHUNK, backlog=256)
        self.tell(reply=server.sockets[0].getsockname()[1])
        reader, _ = await asyncio.open_connection(sock=self.control.dup())
        with suppress(OSError):
            while line := await reader.readline():
                self.tell(reply=self.obey(*json.loads(line)))
        os._exit(0)

    def obey(self, what: str, *words: Any) -> object:
        match what:
            case "blackhole":
                self.holes.append(words[0])
            case "heal":
                self.holes, self.slowness, self.refusals = [], None, []
            case "slow":
                self.slowness = Slowness(*words)
            case "refuse":
                self.refusals.append((words[0], words[1].encode()))
            case "arm":
                pattern, word, where, action = words
                self.traps.append(Trap(pattern, word.encode(), where, action))
            case "names":
                return [line.name for line in self.lines]
            case "cut" | "stall":
                found = [line for line in self.lines if fnmatch.fnmatchcase(line.name, words[0]) and not line.stalled]
                for line in found:
                    line.stalled = True
                    if what == "cut":
                        line.reset()
                return len(found)
        self.changed.set()
        self.changed = asyncio.Event()
        return None

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello, name = await self.greet(reader, writer)
        if not hello:
            writer.transport.abort()
            return
        line = Line((reader, writer), (reader, writer), name)
        self.tell(event=["opened", name])
        await self.passable(line)
        try:
            if self.host.startswith("/"):
                line.server = await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}", limit=CHUNK)
            else:
                line.server = await asyncio.open_connection(self.host, self.port, limit=CHUNK)
        except OSError:
            line.reset()
            self.tell(event=["closed", name])
            return
        for _, end in (line.client, line.server):
            there = end.get_extra_info("socket")
            if there.family != socket.AF_UNIX:
                there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.transport.set_write_buffer_limits(CHUNK)
        line.server[1].write(hello)
        self.lines.append(line)
        line.tasks = [asyncio.create_task(self.carry_up(line)), asyncio.create_task(self.carry_down(line))]
        await asyncio.wait(line.tasks, return_when=asyncio.FIRST_COMPLETED)
        self.lines.remove(line)
        line.reset()
        self.tell(event=["closed", name])

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, str]:
        """Read the first message of a client; return it with the client's application name."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(8)
                length, code = struct.unpack("!ii", head)
                body = await reader.readexactly(length - 8)
                if code in (TLS, GSS):
                    writer.write(b"N")
                    continue
                words = body.split(b"\0")
                given = dict(zip(words[::2], words[1::2], strict=False))
                return head + body, "cancel" if code == CANCEL else given.get(b"application_name", b"").decode()
        return b"", ""

    async def passable(self, line: Line) -> None:
        while line.stalled or any(fnmatch.fnmatchcase(line.name, hole) for hole in self.holes):
            await self.changed.wait()

    async def carry_up(self, line: Line) -> None:
        """Relay from the client to the server."""
        while data := await _some(line.client[0]):
            await self.passable(line)
            if any(word in data and fnmatch.fnmatchcase(line.name, pattern) for pattern, word in self.refusals):
                await self.deliver(
                    line, line.client[1], b"E" + struct.pack("!i", 4 + len(REFUSAL)) + REFUSAL + READY + b"I"
                )
                self.tell(event=["refused", line.name])
                continue
            trap = next(
                (trap for trap in self.traps if trap.word in data and fnmatch.fnmatchcase(line.name, trap.pattern)),
                None,
            )
            if trap is not None:
                self.traps.remove(trap)
                if trap.where == "answered":
                    line.losing = trap
                else:
                    if trap.where == "torn":
                        line.server[1].write(data[: max(len(data) // 2, 1)])
                        await line.server[1].drain()
                    await self.spring(line, trap)
                    continue
            await self.deliver(line, line.server[1], data)
        await self.passable(line)

    async def carry_down(self, line: Line) -> None:
        """Relay from the server to the client."""
        while data := await _some(line.server[0]):
            if line.losing is not None:
                line.tail = (line.tail + data)[-len(READY) - 1 :]  # after ReadyForQuery, nothing more will be committed
                if line.tail[:-1] == READY:
                    await self.spring(line, line.losing)
                continue
            await self.passable(line)
            await self.deliver(line, line.client[1], data)
        await self.passable(line)

    async def spring(self, line: Line, trap: Trap) -> None:
        line.losing, line.stalled = None, True
        if trap.action == "cut":
            asyncio.get_running_loop().call_soon(line.reset)
        elif trap.action == "garble":
            line.client[1].write(GARBAGE)
        self.tell(event=["hit", line.name])
        await self.passable(line)

    async def deliver(self, line: Line, end: asyncio.StreamWriter, data: bytes) -> None:
        slow = self.slowness
        if slow is None or not fnmatch.fnmatchcase(line.name, slow.pattern):
            end.write(data)
        else:
            await asyncio.sleep(slow.latency)
            for piece in [data[at : at + 1] for at in range(len(data))] if slow.crumbs else [data]:
                end.write(piece)
                await end.drain()
                await asyncio.sleep(len(piece) / slow.bandwidth if slow.bandwidth else 0)
        await end.drain()


async def _some(reader: asyncio.StreamReader) -> bytes:
    with suppress(OSError):
        return await reader.read(CHUNK)
    return b""


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as end:
        asyncio.run(Relay(end, sys.argv[2]).serve(sys.argv[3], int(sys.argv[4])))
