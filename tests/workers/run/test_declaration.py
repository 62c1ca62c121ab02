"""Which schedules a worker stores if its client divides the queues over several databases."""

from __future__ import annotations

import json

import pytest

from jobherd import Client, Schedule, configure, handler
from jobherd.handlers._enqueue import default
from jobherd.workers.run.declaration import declare

NOWHERE = "host=/nonexistent connect_timeout=1 dbname="


@handler("mail:digest", queue="mail-out", every="1h")
def digest() -> None: ...


@handler(
    "pdf:clean",
    queue="pdf",
    schedules=[Schedule("clean", every="1h"), Schedule("elsewhere", every="1h", queue="mail-in")],
)
def clean() -> None: ...


HANDLERS = {one.kind: one for one in (digest, clean)}


class Session:
    """Returns a shard number, and keeps the names of the declared schedules."""

    def __init__(self, shard):
        self.shard = shard
        self.declared = None

    def run(self, name, parameters=None):
        if name == "observe/show_shard":
            return [(self.shard,)]
        if name == "schedule/declare_schedules":
            self.declared = [one["name"] for one in json.loads(parameters["schedules"])]
        return []


@pytest.fixture
def divide():
    with default.keeping_default():

        def made(shards, known):
            client = Client(shards=shards, timeout=0.1)
            for address, shard in known.items():
                client.shards.map.record(address, shard)
            configure(client=client)

        yield made


def declared(shard, dsn=""):
    session = Session(shard)
    declare(session, 1, HANDLERS, dsn=dsn)
    return session.declared


def test_all_schedules_are_stored_if_there_are_no_shards():
    with default.keeping_default():
        configure(client=Client("dbname=x"))
        assert declared(0) == ["mail:digest", "clean", "elsewhere"]


def test_each_schedule_is_stored_in_the_database_of_its_queue(divide):
    first, second = NOWHERE + "a", NOWHERE + "b"
    divide({"mail-*": first, "*": second}, {first: 1, second: 2})
    assert declared(1) == ["mail:digest", "elsewhere"]
    assert declared(2) == ["clean"]
    assert declared(0) == declared(7) == ["mail:digest", "clean", "elsewhere"]  # No shard has these numbers.


def test_schedules_are_stored_while_another_database_is_unreachable(divide):
    first, second = NOWHERE + "a", NOWHERE + "b"
    divide({"mail-*": first, "*": second}, {second: 2})
    assert declared(2) == ["clean"]


def test_a_queue_without_a_database_is_reported(divide, caplog):
    first = NOWHERE + "a"
    divide({"mail-*": first}, {first: 1})
    assert declared(1) == ["mail:digest", "elsewhere"]
    assert "schedule clean is not stored: queue 'pdf' matches none of shards" in caplog.text
