"""Table stores: declaration, errors, and how a row becomes a record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from jobherd import ExecutionLogEntry, Job, PayloadError, TableStore
from jobherd.handlers._define.table_record import Scanner
from jobherd.handlers._define.table_store import Held, TableHandler
from jobherd.handlers._load.registry import load


@dataclass
class Upload:
    id: int
    state: str
    failure_message: str | None
    size: float = 0.0


def test_table_store_options_become_the_policy_of_its_handler():
    store = TableStore(
        "uploads",
        table="app.lsif_uploads",
        max_retries=2,
        retry_after="10s",
        max_resets=3,
        stalled_max_age="5s",
        heartbeat_interval=1,
    )

    @store.handler(timeout="1m", poison_on=KeyError)
    def work(job: Job, record, connection) -> None: ...

    policy = work.policy
    assert (policy.timeout, policy.max_attempts, policy.max_crashes, policy.poison_on) == (60.0, 3, 4, (KeyError,))
    assert policy.backoff.delay(1) == policy.backoff.delay(9) == 10.0
    assert (store.stalled_max_age, store.heartbeat_interval) == (5.0, 1.0)
    assert work.transactional

    @store.handler(cost={"memory_mb": 900}, flags=["nightly"])
    def costly(record) -> None: ...

    assert (dict(costly.policy.cost), costly.policy.flags, costly.transactional) == (
        {"memory_mb": 900.0},
        ("nightly",),
        False,
    )
    with pytest.raises((ValueError, TypeError), match="cost"):
        store.handler(cost=lambda payload: {})
    assert work.signature.takes_job


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "x; DROP TABLE y"}, "table 'x; DROP TABLE y' is not the name of a table"),
        ({"table": 'a"b'}, "is not the name of a table"),
        ({"table": "a.b.c"}, "is not the name of a table"),
        ({"view": "v a b"}, "is not the name of a view"),
        ({"alternate_columns": {"status": "state"}}, "renames 'status', which is not a column"),
        ({"alternate_columns": {"state": "x y"}}, r"alternate_columns\['state'\] = 'x y' is not the name of a column"),
        ({"alternate_columns": {"state": "cancel"}}, "two columns the name 'cancel'"),
        ({"columns": "id"}, "takes a list of expressions"),
        ({"columns": ["id", ""]}, "takes SQL expressions as text"),
        ({"scan": 7}, "scan takes a dataclass"),
        ({"max_retries": -1}, "max_retries must be a whole number from 0"),
        ({"interval": 0}, "interval must be more than 0"),
        ({"heartbeat_interval": "30s"}, r"heartbeat_interval \(30 s\) must be less than stalled_max_age \(30 s\)"),
    ],
)
def test_invalid_table_store_is_rejected_at_its_declaration(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        TableStore("uploads", **({"table": "uploads"} | given))


def test_table_store_handler_takes_only_record_and_connection_and_cannot_be_enqueued():
    store = TableStore("uploads", table="uploads")
    for wrong in (lambda: None, lambda connection: None, lambda record, width: None, lambda record, **rest: None):
        with pytest.raises(TypeError, match="its parameters are the record and"):
            store.handler(wrong)

    @store.handler
    def work(upload, connection):
        return upload, connection

    with pytest.raises(TypeError, match='insert a row into "uploads"'):
        work.enqueue({"id": 7})
    with pytest.raises(PayloadError, match="cannot be enqueued"):
        work.binding.bind({})
    work.held = Held({"id": 7}, "the connection")
    assert work.binding.bind(None) == {"upload": {"id": 7}, "connection": "the connection"}


@pytest.mark.promise("B34", "B35", "B59", "B60")
def test_record_is_created_only_from_columns_and_types_that_fit_it():
    """B34, B35, B59, B60."""
    scanner = Scanner(Upload)
    assert scanner.record({"id": 7, "state": "queued", "failure_message": None, "size": 3}) == Upload(
        7, "queued", None, 3
    )
    with pytest.raises(PayloadError, match="column 'state' is null and must be str"):
        scanner.record({"id": 7, "state": None, "failure_message": None})
    with pytest.raises(PayloadError, match="'failure_message' is int and must be str or None"):
        scanner.record({"id": 7, "state": "queued", "failure_message": 3})
    assert scanner.misfits(["id", "state", "failure_message"]) == []
    assert scanner.misfits(["id", "state", "name"]) == [
        "no column of the store is called 'failure_message', which Upload.failure_message needs: select it in columns",
        "Upload has no field for the column 'name': add one, or leave it out of columns",
    ]
    logs = [
        {"key": "clone", "command": "git clone", "exit_code": 1, "at": 1767323045, "more": 1},
        {"key": 1, "at": "?"},
        "x",
    ]
    made = Scanner(None).record({"execution_logs": logs})["execution_logs"]
    assert made[0] == ExecutionLogEntry(
        key="clone", command="git clone", exit_code=1, at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    )
    assert made[1:] == logs[1:]
    assert Scanner(lambda row: row["id"] * 2).record({"id": 7}) == 14


def test_table_store_selects_the_fields_of_the_record_unless_columns_are_given():
    store = TableStore("u", table="jobs", view="v j", scan=Upload, alternate_columns={"state": "status"})
    assert store.names.expressions == ('"j"."id"', '"j"."status" AS "state"', '"j"."failure_message"', '"j"."size"')
    assert (
        TableStore("u", table="jobs", columns=["jobs.id", "lower(name) AS name"], scan=Upload).names.expressions[1]
        == "lower(name) AS name"
    )


def test_folder_of_handlers_may_declare_table_stores(tmp_path):
    (tmp_path / "uploads.py").write_text(
        "from jobherd import TableStore\nstore = TableStore('uploads', table='uploads')\n@store.handler\ndef work(record): ...\n"
    )
    found = load([tmp_path])
    assert not found.problems
    assert isinstance(found.kinds["uploads"], TableHandler)
