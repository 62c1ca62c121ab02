"""A worker's side of tables.

What becomes of a record for each outcome, and what is said of a table at start-up.
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
def test_what_becomes_of_a_record(outcome: Outcome, state: str, delay: float | None, failures: int):
    """B12, B19, B26, B52."""
    said = settle_parameters(outcome, record=7, token=1)
    assert (said["state"], said["delay"], said["failures"], said["message"]) == (state, delay, failures, outcome.error)


def test_what_was_logged_is_an_entry_that_can_be_stored():
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


def test_a_table_that_does_not_fit_its_store_is_found_at_start_up(database: str):
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
    """A session of a child that answers at once, whatever else is refused.

    It notes for how long it was rested, and how.
    """

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
    """As long as the session answers, this is refused all the same.

    No connection is to be had, the disk is full.
    """
    refusals = iter([psycopg.OperationalError("sorry, too many clients already")] * times)

    def ask(*_: object, **__: object) -> object:
        for refusal in refusals:
            raise refusal
        return then

    return ask


def test_an_outcome_that_is_refused_for_now_is_written_after_a_rest_that_grows(monkeypatch: pytest.MonkeyPatch):
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


def test_tables_that_cannot_be_looked_at_for_now_are_looked_at_after_a_rest(monkeypatch: pytest.MonkeyPatch):
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
    """The table, and the handlers that work it."""
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


def test_a_worker_whose_session_for_tables_is_swallowed_while_nobody_needed_it_works_on(
    bench: Bench, gate: Gate, uploading: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """It waited for ever, and took no job of the queue either."""
    monkeypatch.setattr("jobherd.workers.stores.session.PATIENCE", 1.0)
    monkeypatch.setattr("jobherd.workers.stores.session.QUIET", 0.0)
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn, handlers=uploading)
        work_one(bench, child, gate)
        child.wait_idle()
        assert network.stall("jobherd:table:*") == 1
        child.nudge()
        wait_for_line(child, "no word from the server")
        job = bench.enqueue("act:nothing")
        work_one(bench, child, gate)
        bench.wait(job, "completed")
        assert child.dismiss() == EXIT_REQUESTED


def test_an_outcome_is_written_though_the_session_of_its_record_is_swallowed_while_it_runs(
    bench: Bench, gate: Gate, uploading: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """The worker waited for ever, past every timeout; and the server, which knew nothing of it, held the record."""
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
def test_behind_a_pooler_nothing_is_prepared_for_tables(bench: Bench, gate: Gate, uploading: tuple[str, ...]):
    """The next backend does not know it.

    What was taken before that was seen had to be put back by the resetter.
    """
    with Pooler(bench.dsn, "transaction") as pooler:
        child = bench.start(dsn=pooler.dsn, handlers=uploading)
        for _ in range(8):
            work_one(bench, child, gate)
            child.wait_idle()
            pooler.turn()
        assert "_pg3_" not in child.log()
        assert child.dismiss() == EXIT_REQUESTED
