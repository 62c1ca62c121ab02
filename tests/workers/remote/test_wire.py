"""Tests how statements of a worker become messages, against a scripted uplink."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psycopg
import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished, settlement
from jobherd.workers.process.wakeup import Wake
from jobherd.workers.remote import wire as wires
from jobherd.workers.remote.connection import UplinkConnection
from jobherd.workers.remote.wire import RemoteWire
from jobherd.workers.run.declaration import declare
from tests.workers.remote.uplink import Beside, Uplink

CLAIM = {"wanted": 3}


@pytest.fixture
def uplink(tmp_path):
    with Uplink(tmp_path) as own:
        yield own


@pytest.fixture
def wire(uplink, tmp_path):
    connection = UplinkConnection(tmp_path)
    uplink.accept()
    written = []
    wire = RemoteWire(connection, {}, lambda: written.append(dict(wire._held)), kinds=["a"], queues=["q"], lease=40.0)
    wire.written = written
    yield wire
    connection.close()


@pytest.fixture
def patient(monkeypatch):
    """Let a claim wait for its tasks on a slow machine too."""
    monkeypatch.setattr(wires, "MOMENT", 30.0)


def settle(*ids, token=9):
    values = settlement(4, token, [Finished(one, OK, 1.0, 0.0) for one in ids], ran_on="here/1", now=1.0)
    return "settle/settle_jobs", values


def test_claim_is_sent_as_a_ready_and_returns_its_tasks_as_rows(uplink, wire, patient):
    def serve():
        ready = uplink.read().ready
        uplink.give(ready.number, 1, 2)
        return ready

    with Beside(serve) as served:
        (rows,) = wire.exchange(("claim/claim_jobs", CLAIM))
    assert [(row[0], row[1], row[2]) for row in rows] == [(9, 1, "a"), (9, 2, "a")]
    assert served.result == m.Ready(number=1, kinds=["a"], queues=["q"], count=3, lease_seconds=40.0)
    assert wire.written == [{9: [1, 2]}]


def test_claim_without_tasks_is_empty_and_its_ready_stays_open(uplink, wire, monkeypatch):
    monkeypatch.setattr(wires, "MOMENT", 0.0)
    assert wire.exchange_urgent("claim/claim_job", CLAIM) == []
    assert wire.exchange_urgent("claim/claim_job", CLAIM) == []
    assert uplink.read().ready.number == 1
    monkeypatch.setattr(wires, "MOMENT", 30.0)
    uplink.give(1, 5)
    assert [row[1] for row in wire.exchange_urgent("claim/claim_job", CLAIM)] == [5]
    with Beside(lambda: uplink.give(uplink.read().ready.number, 6, claim=10)):
        assert [row[1] for row in wire.exchange_urgent("claim/claim_job", CLAIM)] == [6]


def test_settlement_waits_until_the_gateway_has_recorded_it(uplink, wire):
    wire._held[9] = [1, 2, 3]

    def serve():
        batch = uplink.read().results
        uplink.confirm(batch.number, 2)
        return batch

    with Beside(serve) as served:
        (rows,) = wire.exchange(settle(1, 2))
    assert rows == [(1,)]
    assert [one.WhichOneof("outcome") for one in served.result.results] == ["completed", "completed"]
    assert wire.written == [{9: [3]}]


def test_progress_is_sent_before_the_results(uplink, wire):
    finished = Finished(1, OK, 1.0, 0.0, progress='{"fraction":0.5,"note":"half","data":[1]}')
    values = settlement(4, 9, [finished], ran_on="here/1", now=1.0)

    def serve():
        progress = uplink.read().progress
        uplink.confirm(uplink.read().results.number)
        return progress

    with Beside(serve) as served:
        wire.exchange(("settle/settle_jobs", values))
    ref = m.TaskRef(task_id=1, claim=9)
    assert served.result == m.Progress(task=ref, fraction=0.5, note="half", data=b"[1]")


def test_results_and_a_claim_are_sent_together(uplink, wire, patient):
    def serve():
        batch, ready = uplink.read().results, uplink.read().ready
        uplink.give(ready.number, 5, claim=10)
        uplink.confirm(batch.number)

    with Beside(serve):
        settled, claimed = wire.exchange_each(settle(1), ("claim/claim_jobs", CLAIM))
    assert (settled, [row[1] for row in claimed]) == ([(1,)], [5])


def test_claim_ahead_does_not_wait_for_the_settlement(uplink, wire, patient):
    def serve():
        uplink.read()
        uplink.give(uplink.read().ready.number, 5, claim=10)

    with Beside(serve):
        claimed = wire.exchange_ahead(("claim/claim_jobs", CLAIM), settle(1))
    assert ([row[1] for row in claimed], wire.is_pending) == ([5], True)
    uplink.confirm(1)
    assert (wire.receive_pending(), wire.is_pending) == ([(1,)], False)


@pytest.mark.parametrize("first", [0, 1], ids=["ack first", "tasks first"])
def test_worker_does_not_sleep_if_tasks_came_with_an_acknowledgement(uplink, wire, monkeypatch, first):
    """The socket has no more data then, so nothing else would wake the worker."""
    wake = Wake(os.open("/dev/null", os.O_RDONLY), parent=os.getppid())
    wake.source = wire
    monkeypatch.setattr(wires, "MOMENT", 0.0)
    assert wire.exchange_ahead(("claim/claim_jobs", CLAIM), settle(1)) == []
    ack = m.WorkResponse(result_ack=m.ResultAck(up_to=1))
    tasks = m.WorkResponse(tasks=m.TaskBatch(ready=1, tasks=[m.Task(id=5, claim=10)]))
    uplink.send_all(*(tasks, ack)[:: 1 if first else -1])
    assert wire.receive_pending() == [(1,)]
    assert wake.rest(60.0)
    assert [row[1] for row in wire.exchange_urgent("claim/claim_job", CLAIM)] == [5]
    assert not wire.has_arrived


def test_lost_uplink_raises_a_connection_error(uplink, wire):
    with Beside(lambda: (uplink.read(), uplink.close())), pytest.raises(psycopg.OperationalError):
        wire.exchange(settle(1))
    with pytest.raises(psycopg.OperationalError):
        wire.exchange(settle(1))


def test_missing_uplink_raises_a_connection_error(tmp_path):
    with pytest.raises(psycopg.OperationalError):
        UplinkConnection(tmp_path)


def test_statement_that_concerns_only_a_database_needs_no_uplink(wire):
    assert wire.exchange(("lease/register_kinds", {}), ("claim/claim_more", {})) == [[], []]
    assert wire.exchange(("recover/find_child", {"child": 4}))[0]


def test_every_declaration_of_a_starting_worker_is_answered(wire):
    declare(SimpleNamespace(run=lambda name, values: wire.exchange((name, values))[0]), 1, {})


def test_statement_that_needs_a_database_raises_an_error_that_causes_no_reconnect(wire):
    with pytest.raises(psycopg.ProgrammingError, match="needs a database"):
        wire.exchange(("table/claim_record", {}))
