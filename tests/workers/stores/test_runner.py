"""Table stores in a worker.

The state of a record after each outcome, the startup check of a table, and lost or shared sessions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from jobherd import TableStore
from jobherd.handlers._values.outcome import Outcome
from jobherd.sql.table_statements import definition
from jobherd.workers.ipc.pipes import EXIT_REQUESTED
from jobherd.workers.job.finished import Finished
from jobherd.workers.process.spec import ChildSettings
from jobherd.workers.stores.record import Taken, log_entries, settle_parameters
from jobherd.workers.stores.resetter import given_up
from jobherd.workers.stores.runner import Tables
from jobherd.workers.stores.table_check import are_fit, look_at_tables
from tests.support.gate import Arrival, Gate
from tests.support.network import Network
from tests.support.pooler import PROGRAM, Pooler
from tests.support.seats import ACTING, Bench, Child, wait_for_line


@dataclass
class Upload:
    id: int
    state: str
    owner: str


@pytest.mark.parametrize(
    ("outcome", "state", "delay", "failures"),
    [
        (Outcome("ok"), "completed", None, 0),
        (Outcome("retry", delay=5.0, error="x"), "errored", 5.0, 1),
        (Outcome("failed", error="x"), "failed", None, 1),
        (Outcome("poison", error="x"), "failed", None, 1),
        (Outcome("cancelled", error="x"), "canceled", None, 0),
        (Outcome("snoozed", delay=7.0), "queued", 7.0, 0),
        (Outcome("abandoned"), "queued", None, 0),
    ],
    ids=lambda value: value.label if isinstance(value, Outcome) else "",
)
@pytest.mark.promise("B12", "B19", "B26", "B52")
def test_outcome_decides_state_delay_failures_and_message_of_a_record(
    outcome: Outcome, state: str, delay: float | None, failures: int
):
    said = settle_parameters(outcome, record=7, token=1)
    assert (said["state"], said["delay"], said["failures"], said["message"]) == (state, delay, failures, outcome.error)


def test_log_entries_of_a_failed_record_end_with_the_attempt_and_its_output():
    log = '{"output":"said","entries":[{"key":"clone","exit_code":0}]}'
    failed = Finished(7, Outcome("failed", error="x"), 1.5, log=log)
    assert log_entries(failed, "a", began=2.0) == [
        '{"key":"clone","exit_code":0}', '{"key":"a","at":2.0,"exit_code":1,"duration":1.5,"out":"said"}',
    ]  # fmt: skip
    assert log_entries(failed._replace(log=None), "a", began=2.0) == []
    assert "6 times" in given_up(5)


def problems(dsn: str, **given) -> list[str]:
    store = TableStore("uploads", **({"table": "uploads", "scan": Upload} | given))

    @store.handler
    def work(record): ...

    return [each.split("): ", 1)[1] for each in look_at_tables(ChildSettings(dsn=dsn), [work], pooled=False)]


def test_startup_check_reports_a_table_that_does_not_match_its_store(database: str):
    assert problems(database) == [
        'there is no table "uploads": create it (jobherd check --print-sql prints how), or correct the name'
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(definition(TableStore("uploads", table="uploads").names, "uploads").encode())
        [said] = problems(database)
        assert "does not understand its columns, view or order_by" in said
        assert "owner" in said
        connection.execute("ALTER TABLE uploads ADD COLUMN owner text, ADD COLUMN size bigint")
        assert problems(database) == []
        assert problems(database, columns=["id", "state", "owner", "size"]) == [
            "Upload has no field for the column 'size': add one, or leave it out of columns"
        ]
        assert problems(database, columns=["id", "state"]) == [
            "no column of the store is called 'owner', which Upload.owner needs: select it in columns"
        ]
        assert "order_by" in problems(database, order_by="uploads.nothing")[0]
        assert "order_by" in problems(database, view="nowhere uploads")[0]
        connection.execute("ALTER TABLE uploads DROP COLUMN cancel, DROP COLUMN num_failures")
        assert len(problems(database)) == 2


class Answering:
    """A worker's session that answers at once. It records the duration of each pause, and whether it was patient."""

    child = 3
    pooled = False

    def __init__(self) -> None:
        self.rests: list[tuple[float, bool]] = []
        self.waiting = self

    def run(self, statement: str, parameters: object = None, *, patient: bool = False) -> list[tuple[Any, ...]]:
        assert (statement, parameters) in [
            ("observe/show_time", None),
            ("table/terminate_table_session", {"child": self.child}),
        ]
        return [(0,)]

    def rest(self, seconds: float, *, patient: bool) -> None:
        self.rests.append((seconds, patient))


def tables(session: Answering, *stores: Any) -> Tables:
    spec = SimpleNamespace(settings=ChildSettings(dsn="", db_retry_initial=0.5, db_retry_max=1.5), report=-1)
    parts: dict[str, Any] = dict.fromkeys(("executor", "interrupts", "taken", "hooks"))
    return Tables(stores, spec=spec, session=session, **parts)  # type: ignore[arg-type]


def refusing(times: int, then: object):
    """Return a function that raises an error `times` times and then returns `then`.

    Such an error can occur although the session answers: the server has no free connection, or its disk is full.
    """
    refusals = iter([psycopg.OperationalError("sorry, too many clients already")] * times)

    def ask(*_: object, **__: object) -> object:
        for refusal in refusals:
            raise refusal
        return then

    return ask


def test_outcome_that_is_rejected_temporarily_is_recorded_after_growing_pauses(monkeypatch: pytest.MonkeyPatch):
    written: list[dict[str, Any]] = []
    there = SimpleNamespace(execute=lambda _, parameters: written.append(parameters), close=lambda: None, broken=False)
    monkeypatch.setattr("jobherd.workers.stores.session.connect", refusing(4, there))
    monkeypatch.setattr("jobherd.workers.stores.runner.OurCursor", lambda connection: connection)
    session = Answering()
    store = TableStore("uploads", table="uploads", scan=Upload)
    table: Any = SimpleNamespace(store=store, kind="uploads", transactional=False)
    taken = Taken._make([7, 1, *[0] * (len(Taken._fields) - 2)])
    tables(session)._settle_apart(table, taken, Finished(7, Outcome("ok"), 1.0), psycopg.OperationalError("lost"))
    assert session.rests == [(0.5, True), (1.0, True), (1.5, True), (1.5, True)]
    assert [said["state"] for said in written] == ["completed"]


def test_startup_check_of_tables_is_repeated_after_a_temporary_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobherd.workers.stores.table_check.look_at_tables", refusing(2, []))
    session = Answering()
    spec = SimpleNamespace(settings=ChildSettings(dsn="", db_retry_initial=0.5, db_retry_max=1.5), report=-1)
    assert are_fit([], session, spec)
    assert session.rests == [(0.5, False), (1.0, False)]


STORE = """
from dataclasses import dataclass
from jobherd import TableStore
from tests.support.gate import at_gate

@dataclass
class Upload:
    id: int
    state: str

uploads = TableStore("uploads", table="uploads", scan=Upload, interval="1s")

@uploads.handler(timeout="1m")
def work(record: Upload) -> None:
    at_gate(record.id)
"""


@pytest.fixture
def uploading(bench: Bench, tmp_path: Path) -> tuple[str, ...]:
    """Create the table, and return the files of the handlers."""
    bench.ask(definition(TableStore("uploads", table="uploads").names, "uploads"))
    bench.ask("CREATE TRIGGER seen AFTER UPDATE ON uploads FOR EACH STATEMENT EXECUTE FUNCTION public.seen()")
    module = tmp_path / "uploading.py"
    module.write_text(STORE)
    return ACTING, str(module)


def begin_one(bench: Bench, child: Child, gate: Gate) -> tuple[dict[str, int], Arrival]:
    (record,) = bench.ask("INSERT INTO uploads DEFAULT VALUES RETURNING id")
    child.nudge()
    return record, gate.wait_arrival(record["id"])


def work_one(bench: Bench, child: Child, gate: Gate) -> None:
    record, arrival = begin_one(bench, child, gate)
    arrival.open()
    bench.wait_until(
        lambda: bench.ask("SELECT FROM uploads WHERE id = %(id)s AND state = 'completed'", **record),
        f"record {record['id']}",
    )


def test_worker_continues_if_its_unused_table_session_goes_silent(
    bench: Bench, gate: Gate, uploading: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """The worker waited indefinitely, and claimed no job of the queue either."""
    monkeypatch.setattr("jobherd.workers.stores.session.PATIENCE", 1.0)
    monkeypatch.setattr("jobherd.workers.stores.session.QUIET", 0.0)
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn, handlers=uploading)
        work_one(bench, child, gate)
        child.wait_idle()
        assert network.stall("jobherd:table:*") == 1
        child.nudge()
        wait_for_line(child, "no message from the server")
        job = bench.enqueue("act:nothing")
        work_one(bench, child, gate)
        bench.wait(job, "completed")
        assert child.dismiss() == EXIT_REQUESTED


def test_outcome_is_recorded_if_the_table_session_goes_silent_while_the_record_runs(
    bench: Bench, gate: Gate, uploading: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """The worker waited indefinitely, past every timeout. The server noticed nothing and kept the record locked."""
    monkeypatch.setattr("jobherd.workers.stores.session.PATIENCE", 1.0)
    monkeypatch.setattr("jobherd.workers.stores.session.QUIET", 0.0)
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn, handlers=uploading)
        record, arrival = begin_one(bench, child, gate)
        assert network.stall("jobherd:table:*") == 1
        arrival.open()
        bench.wait_until(
            lambda: bench.ask("SELECT FROM uploads WHERE id = %(id)s AND state = 'completed'", **record), "its outcome"
        )
        work_one(bench, child, gate)
        assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
def test_no_statement_is_prepared_for_tables_behind_a_pooler(bench: Bench, gate: Gate, uploading: tuple[str, ...]):
    """The next backend does not have the statement.

    The resetter then had to reset records that were claimed before the worker saw the error.
    """
    with Pooler(bench.dsn, "transaction") as pooler:
        child = bench.start(dsn=pooler.dsn, handlers=uploading)
        for _ in range(8):
            work_one(bench, child, gate)
            child.wait_idle()
            pooler.turn()
        assert "_pg3_" not in child.log()
        assert child.dismiss() == EXIT_REQUESTED
