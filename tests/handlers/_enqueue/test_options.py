"""Checks of options, kinds and payloads before anything is sent. No database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta, timezone

import pytest

from jobherd import (
    AsyncClient,
    Client,
    Job,
    PayloadError,
    aenqueue_many_on,
    aenqueue_on,
    enqueue_many_on,
    enqueue_on,
    handler,
)
from jobherd.handlers._enqueue.bulk import many_by_name, one_by_name
from jobherd.handlers._enqueue.options import check_options
from jobherd.handlers._enqueue.statements import show_job

NOWHERE = "host=/nonexistent"
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@handler("mail:receipt")
def receipt(order_id: int) -> None: ...


def test_options_become_seconds_and_parameters_of_the_statement():
    options = check_options(
        delay="10m", timeout=timedelta(minutes=1), priority=-5, queue="media", max_attempts=8, expires_at=MOMENT
    )
    (chunk,) = many_by_name("mail:receipt", [{"a": 1}, {}], {"delay": "10m"})
    statement = chunk.statement()
    assert (options.delay, options.timeout, options.priority, options.queue, options.max_attempts) == (
        600,
        60,
        -5,
        "media",
        8,
    )
    assert statement.name == "enqueue/enqueue_jobs"
    assert statement.parameters["payloads"] == ['{"a":1}', "{}"]
    assert statement.parameters["delay"] == 600
    assert statement.parameters["queue"] is None


@pytest.mark.parametrize(
    ("options", "problem", "says"),
    [
        ({"delay": "1m", "run_at": MOMENT}, ValueError, "delay and run_at exclude each other"),
        ({"run_at": datetime(2030, 1, 1)}, ValueError, "run_at has no time zone"),  # noqa: DTZ001
        ({"run_at": "2030-01-01"}, TypeError, "run_at must be a datetime"),
        ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, ValueError, "run_at must lie between"),
        (
            {"expires_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
            ValueError,
            "expires_at must lie between",
        ),
        (
            {"run_at": datetime(8999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-1)))},
            ValueError,
            "run_at must lie between",
        ),
        (
            {"expires_at": datetime(1900, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
            ValueError,
            "expires_at must lie between",
        ),
        ({"expires_at": datetime(2030, 1, 1)}, ValueError, "expires_at has no time zone"),  # noqa: DTZ001
        ({"queue": "No"}, ValueError, "queue 'No'"),
        ({"priority": 2**31}, ValueError, "priority"),
        ({"max_attempts": 0}, ValueError, "max_attempts"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"delay": float("inf")}, ValueError, "delay"),
        ({"after": ["a"]}, TypeError, "each id in after is a whole number, not a str"),
        ({"after": 1.5}, TypeError, "after is the id of a job, or a list of ids, not a float"),
        ({"run_at": 5}, TypeError, "run_at must be a datetime with a time zone, not an int"),
        (
            {"dely": 5},
            TypeError,
            r"^enqueue\(\) has no option 'dely'; it has after, cost, debounce, delay, edge, encrypt, .*payload_bytes",
        ),
    ],
    ids=str,
)
def test_error_names_the_invalid_option(options, problem, says):
    with pytest.raises(problem, match=says):
        one_by_name("mail:receipt", {}, options)


def test_error_for_an_unknown_option_names_the_call_and_the_options_it_has():
    client = Client(NOWHERE)
    for call in (client.enqueue_many, client.enqueue_stream):
        with pytest.raises(
            TypeError,
            match=rf"^{call.__name__}\(\) has no option 'dely'; it has after, cost, debounce, delay, edge, encrypt",
        ) as caught:
            call("a:b", [], dely=5)
        assert "payload_bytes" not in str(caught.value), "bulk calls do not accept payload_bytes"
    for name in ("enqueue_many", "enqueue_stream"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) has no option 'dely'"):
            asyncio.run(getattr(AsyncClient(NOWHERE), name)("a:b", [], dely=5))
    for one in (enqueue_on, enqueue_many_on):
        with pytest.raises(TypeError, match=rf"^{one.__name__}\(\) has no option 'dely'"):
            one(None, "a:b", [], dely=5)
    for other in (aenqueue_on, aenqueue_many_on):
        with pytest.raises(TypeError, match=rf"^{other.__name__}\(\) has no option 'dely'"):
            asyncio.run(other(None, "a:b", [], dely=5))


@pytest.mark.parametrize("one", [{"order_id": 1}, "order 1", b"order 1"], ids=["dict", "str", "bytes"])
def test_arguments_of_one_job_in_place_of_a_list_are_rejected(one):
    client = Client(NOWHERE)
    says = f"the jobs of 'a:b' must be a list or another iterable of them, not one {type(one).__name__}"
    for call in (client.enqueue_many, client.enqueue_stream):
        with pytest.raises(TypeError, match=says):
            call("a:b", one)
    with pytest.raises(TypeError, match=says):
        enqueue_many_on(None, "a:b", one)
    for name in ("enqueue_many", "enqueue_stream"):
        with pytest.raises(TypeError, match=says):
            asyncio.run(getattr(AsyncClient(NOWHERE), name)("a:b", one))


def test_payload_bytes_as_an_option_of_a_handler_that_would_not_get_them_are_rejected():
    def plain(n: int) -> None: ...
    def takes(payload_bytes: bytes | None = None) -> None: ...
    def by_job(job: Job, n: int) -> None: ...

    with pytest.raises(TypeError, match="options of 'a:b' cannot have payload_bytes: its handler has neither"):
        handler("a:b")(plain).options(payload_bytes=b"x")
    with pytest.raises(TypeError, match="payload_bytes: give them to enqueue as an argument"):
        handler("a:b")(takes).options(payload_bytes=b"x")
    assert handler("a:b")(by_job).options(payload_bytes=b"x").set_options.payload_bytes == b"x"


def test_object_that_is_not_a_connection_or_client_is_rejected():
    with pytest.raises(
        TypeError,
        match="connection must be a connection or session of psycopg 3, SQLAlchemy, Django or asyncpg, not an int",
    ):
        receipt.options(connection=5)
    with contextlib.closing(sqlite3.connect(":memory:")) as foreign:
        with pytest.raises(
            TypeError,
            match="connection must be a connection or session of psycopg 3, SQLAlchemy, Django or asyncpg, not a sqlite3.Connection",
        ):
            receipt.options(connection=foreign)
        for client in (Client, AsyncClient):
            with pytest.raises(TypeError, match="connection must be a connection or session of psycopg 3"):
                client(connection=foreign)
    with pytest.raises(TypeError, match="connection must be .* not a NoneType"):
        enqueue_on(None, "a:b")
    with pytest.raises(TypeError, match="client must be a Client or an AsyncClient, not a str"):
        receipt.options(client="postgresql:///app")


def test_a_negative_delay_means_now():
    assert check_options(delay="-5m").delay == 0


@pytest.mark.parametrize("kind", ["os.system()", "../../x", "a;drop table", "<script>", "x" * 10_000, "", None, 5])
def test_invalid_kind_is_rejected(kind):
    with pytest.raises(ValueError, match="is not a name"):
        one_by_name(kind, {}, {})


def test_invalid_payload_is_rejected():
    with pytest.raises(PayloadError, match=r"^payload at \$\.a"):
        one_by_name("a:b", {"a": "\0"}, {})


@pytest.mark.parametrize(
    ("job_id", "problem"), [("7", TypeError), (True, TypeError), (None, TypeError), (2**63, ValueError)]
)
def test_invalid_job_id_is_rejected(job_id, problem):
    with pytest.raises(problem, match="id"):
        show_job(job_id)
