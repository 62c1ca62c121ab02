"""The relay process of `message_proxy.py`: relays connections and ends them before or after a message.

It parses HTTP/2 frames and gRPC message lengths, so it works only without TLS and compression.
Commands and answers are lines of JSON.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PREFACE = 24
"""Bytes that an HTTP/2 client sends first."""
FRAME = 9
"""Length of a frame's header in bytes."""
PREFIX = 5
"""Bytes before a gRPC message: the compression flag and the length."""
DATA = 0
"""Type of the frames that contain messages."""


@dataclass
class Cut:
    """The message at which a connection is to be cut."""

    way: str
    kind: str
    delivered: bool


@dataclass
class Message:
    """The message of a stream that is being relayed."""

    head: bytearray = field(default_factory=bytearray)
    """The bytes of its prefix and its first byte that have arrived."""
    begin: int = 0
    """Offset in the current frame at which it begins."""
    left: int | None = None
    """Bytes that have not arrived yet. None: the head is not complete."""
    ends_all: bool = False


class Way:
    """One direction of a connection."""

    def __init__(self, name: str, kinds: dict[int, str]) -> None:
        self.name = name
        self.silent = False
        self._kinds = kinds
        self._buffer = b""
        self._preface = PREFACE if name == "up" else 0
        self._messages: dict[int, Message] = {}

    def pass_on(self, data: bytes, cut: Cut | None) -> tuple[bytes, bool]:
        """Process received bytes. Return the bytes to relay, and whether the connection ends after them."""
        self._buffer += data
        passing = self._buffer[: self._preface]
        self._buffer = self._buffer[len(passing) :]
        self._preface -= len(passing)
        while len(self._buffer) >= FRAME:
            length = FRAME + int.from_bytes(self._buffer[:3])
            if len(self._buffer) < length:
                break
            frame, self._buffer = self._buffer[:length], self._buffer[length:]
            if frame[3] == DATA:
                content, stream = frame[FRAME:], int.from_bytes(frame[5:FRAME])
                until = self._walk(self._messages.setdefault(stream, Message()), content, cut)
                if until is not None:
                    part = content[:until]
                    # Without flags, so that only the connection ends, not the stream.
                    return passing + len(part).to_bytes(3) + bytes(2) + frame[5:FRAME] + part, True
            passing += frame
        return passing, False

    def _walk(self, message: Message, content: bytes, cut: Cut | None) -> int | None:
        """Find the messages in a frame. Return the offset of the cut, or None."""
        at = message.begin = 0
        while at < len(content):
            if message.left is None:
                if not message.head:
                    message.begin = at
                message.head.append(content[at])
                at += 1
                if len(message.head) == PREFIX and not any(message.head[1:]):
                    message.head.clear()  # an empty message has no event
                elif len(message.head) > PREFIX:
                    kind = self._kinds.get(message.head[PREFIX] >> 3)
                    message.left = int.from_bytes(message.head[1:PREFIX]) - 1
                    message.ends_all = cut is not None and (cut.way, cut.kind) == (self.name, kind)
                    if message.ends_all and cut is not None and not cut.delivered:
                        return message.begin
            else:
                step = min(message.left, len(content) - at)
                at += step
                message.left -= step
            if message.left == 0:
                message.left = None
                message.head.clear()
                if message.ends_all:
                    return at
        return None


def kinds_of(message: Any) -> dict[int, str]:
    """Return the names of a message's events by field number."""
    return {each.number: each.name for each in message.DESCRIPTOR.oneofs_by_name["event"].fields}


class Relay:
    """The main loop: accepts, relays and cuts connections."""

    def __init__(self, target: str) -> None:
        from jobherd.handlers._remote.messages import WorkRequest, WorkResponse

        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._kinds = {"up": kinds_of(WorkRequest), "down": kinds_of(WorkResponse)}
        self._listeners: dict[socket.socket, int] = {}
        """The port of each listening socket."""
        self._partner: dict[socket.socket, socket.socket] = {}
        self._ways: dict[socket.socket, Way] = {}
        """The direction of each socket that is read."""
        self._port: dict[socket.socket, int] = {}
        """The port at which the connection was accepted, for both sockets."""
        self._ending: set[socket.socket] = set()
        """Sockets closed for writing. What their peers still send is discarded."""
        self._cuts: dict[int, Cut] = {}
        """The next cut of each port."""

    def run(self) -> None:
        while True:
            heard = [end for end in self._partner if not self._ways[end].silent]
            readable, _, _ = select.select([0, *self._listeners, *heard, *self._ending], [], [])
            for end in readable:
                if end == 0:
                    # Unbuffered: a second line in a buffer would not make the descriptor readable.
                    if not (line := sys.stdin.buffer.raw.readline()):
                        return
                    say(**self._take(json.loads(line)))
                elif end in self._listeners:
                    self._accept(end)
                elif end in self._ending:
                    self._discard(end)
                elif end in self._partner:
                    self._relay(end)

    def _take(self, order: dict[str, Any]) -> dict[str, object]:
        match order["do"]:
            case "open":
                listener = socket.create_server(("127.0.0.1", 0))
                self._listeners[listener] = port = listener.getsockname()[1]
                return {"port": port}
            case "cut":
                self._cuts[order["port"]] = Cut(**order["cut"])
            case "silence":
                for end, way in self._ways.items():
                    way.silent = way.silent or (self._port[end], way.name) == (order["port"], order["way"])
        return {"taken": True}

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:  # the gateway is not listening yet
            reset(client)
            return
        self._partner |= {client: server, server: client}
        self._ways |= {client: Way("up", self._kinds["up"]), server: Way("down", self._kinds["down"])}
        self._port |= dict.fromkeys((client, server), self._listeners[listener])

    def _relay(self, end: socket.socket) -> None:
        data, partner, way, port = b"", self._partner[end], self._ways[end], self._port[end]
        with suppress(ConnectionError):
            data = end.recv(1 << 16)
        if not data:
            self._drop(end, partner)
            end.close()
            partner.close()
            return
        cut = self._cuts.get(port)
        passing, last = way.pass_on(data, cut)
        with suppress(ConnectionError):
            partner.sendall(passing)
        if last:
            assert cut is not None
            self._drop(end, partner)
            reset(end)
            if cut.delivered:
                partner.shutdown(socket.SHUT_WR)
                self._ending.add(partner)
            else:
                reset(partner)
            del self._cuts[port]
            say(cut=port)

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            del self._partner[end], self._ways[end], self._port[end]

    def _discard(self, end: socket.socket) -> None:
        data = b""
        with suppress(ConnectionError):
            data = end.recv(1 << 16)
        if not data:
            self._ending.discard(end)
            end.close()


def reset(end: socket.socket) -> None:
    """Close a socket so that its peer gets a connection reset."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    Relay(sys.argv[1]).run()
