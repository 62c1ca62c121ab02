"""Tests the connection to the supervisor: events before it connects, and answers for an earlier connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobherd.workers.uplink.parent_link import ParentLink


class Connection:
    """A socket that keeps what is sent. on_data, on_end: set by the link."""

    def __init__(self) -> None:
        self.data, self.closed = b"", False
        self.on_data: Any = None
        self.on_end: Any = None

    def send(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True

    def lines(self) -> list[dict[str, Any]]:
        found, self.data = [json.loads(line) for line in self.data.splitlines()], b""
        return found


class Scene:
    def __init__(self) -> None:
        self.begun: list[tuple[str, set[int]]] = []
        self.asked: list[Any] = []
        self.link = ParentLink(lambda *words: self.begun.append(words), self.carry_out)

    def carry_out(self, name: str, _parameters: Any, answer: Any) -> bool:
        self.asked.append(answer)
        return name != "unknown"

    def connect(self) -> Connection:
        connection: Any = Connection()
        self.link.accept(connection)
        return connection


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_events_before_the_supervisor_connects_are_sent_once_it_connects(scene):
    scene.link.tell({"event": "release_rest"})
    connection = scene.connect()
    assert connection.lines() == [{"event": "release_rest"}]
    connection.on_end()
    scene.link.tell({"event": "session"})
    assert connection.lines() == []
    assert scene.connect().lines() == [{"event": "session"}]


def test_lines_may_arrive_in_parts_and_each_request_gets_its_answer(scene):
    connection = scene.connect()
    begin, ask = b'{"begin": {"session": "7", "living": [3, 4]}}\n', b'{"id": 5, "ask": "a/b", "with": {}}\n'
    for part in (begin[:9], begin[9:] + ask[:4], ask[4:]):
        connection.on_data(part)
    assert scene.begun == [("7", {3, 4})]
    scene.asked.pop()([["1"]])
    assert connection.lines() == [{"id": 5, "rows": [["1"]]}]
    connection.on_data(b'{"id": 6, "ask": "unknown", "with": {}}\n')
    assert connection.lines() == [{"id": 6, "refused": True}]


def test_answer_is_not_sent_to_a_later_connection(scene):
    """The supervisor has abandoned that request, and may have reused its number."""
    first = scene.connect()
    first.on_data(b'{"id": 1, "ask": "a/b", "with": {}}\n')
    second = scene.connect()
    assert first.closed
    first.on_end()  # the end of the first one does not end the second
    scene.asked.pop()([])
    assert (first.lines(), second.lines()) == ([], [])
    scene.link.tell({"event": "session"})
    assert second.lines() == [{"event": "session"}]
