from __future__ import annotations

import io
import json
import logging

import pytest

from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.process.logs import keep_factory_quiet, set_up


@pytest.fixture
def root():
    """The root logger. Its configuration is restored after the test."""
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    logging.captureWarnings(False)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://app:hunter2@db:5432/jobs",
        "postgres://app:hunter2@db/jobs?sslmode=require",
        "postgresql://db/jobs?user=app&password=hunter2&sslmode=require",
        "host=db password=hunter2 user=app",
        "host=db password = 'hunter2' user=app",
        r"password='it\'s hunter2'",
        "PASSWORD=hunter2",
        "sslpassword=hunter2",
        'connection to "postgresql://app:hunter2@db/jobs" failed',
        "postgresql://app:geheim@hunter2@db/jobs",
        "failed to resolve host 'hunter2@db': [Errno -2] Name or service not known",
        'could not translate host name "hunter2@db" to address: Name or service not known',
    ],
)
def test_passwords_are_masked(text: str):
    assert "hunter2" not in redact_dsn(text)
    assert "***" in redact_dsn(text)


@pytest.mark.parametrize(
    "text", ["postgresql://app@db/jobs", "host=db user=app", "see https://example.org/a:b", "12:34:56"]
)
def test_text_without_a_password_is_unchanged(text: str):
    assert redact_dsn(text) == text


def test_text_format_writes_process_message_and_fields_without_the_payload(root):
    stream = io.StringIO()
    set_up(process="worker 3", stream=stream, ids=lambda: {"job": 7})
    logging.getLogger("jobherd.x").warning("the %s is away", "database", extra={"token": 9, "payload": {"secret": 1}})
    line = stream.getvalue()
    assert line.endswith("WARNING worker 3: the database is away  job=7 token=9\n")
    assert "secret" not in line


def test_json_format_writes_one_line_with_fields_and_masked_traceback(root):
    stream = io.StringIO()
    set_up(process="supervisor", log_format="json", stream=stream)
    try:
        raise ValueError("postgresql://app:hunter2@db")
    except ValueError:
        logging.getLogger("jobherd.x").exception("two\nlines", extra={"child": 4})
    assert stream.getvalue().count("\n") == 1
    event = json.loads(stream.getvalue())
    assert (event["process"], event["level"], event["message"], event["child"]) == (
        "supervisor",
        "error",
        "two\nlines",
        4,
    )
    assert "ValueError" in event["traceback"]
    assert "hunter2" not in stream.getvalue()


def test_auto_format_is_json_if_the_stream_is_not_a_terminal(root):
    stream = io.StringIO()
    set_up(process="x", log_format="auto", stream=stream)
    logging.getLogger("y").warning("hello")
    assert json.loads(stream.getvalue())["message"] == "hello"


def test_control_characters_and_line_breaks_cannot_forge_a_log_line(root):
    stream = io.StringIO()
    set_up(process="x", stream=stream)
    logging.getLogger("y").warning("a\n12:00:00 ERROR forged \x1b[2J\x00\u2028 end")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_logging_to_a_closed_stream_raises_no_error(root):
    stream = io.StringIO()
    set_up(process="x", stream=stream)
    stream.close()
    logging.getLogger("y").warning("nobody hears")


def test_log_arguments_that_cannot_be_formatted_are_replaced_by_a_note(root):
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError

    stream = io.StringIO()
    set_up(process="x", stream=stream)
    logging.getLogger("y").warning("this: %s", Rude())
    logging.getLogger("y").warning("%d", "no number")
    assert stream.getvalue().count("cannot be shown") == 2


def test_status_board_keeps_the_latest_log_lines(root):
    board = StatusBoard("log")
    set_up(process="worker 1", stream=io.StringIO(), board=board)
    for number in range(2000):
        logging.getLogger("y").warning("line %d %s", number, "x" * 100)
    tail = board.log_tail().decode().splitlines()
    assert "line 1999" in tail[-1]
    assert all("worker 1: line" in line for line in tail)
    root.handlers.clear()
    board.close()


@pytest.mark.promise("C24")
def test_unknown_log_format_or_level_is_rejected(root):
    with pytest.raises(ValueError, match="xml"):
        set_up(process="x", log_format="xml")
    with pytest.raises(ValueError, match="loud"):
        set_up(process="x", level="loud", stream=io.StringIO())


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "hostile",
    [
        "a\r\n10:00:00.000 ERROR   worker 1: forged",
        "\x1b[2J\x1b]0;title\x07",
        "\u202etxt.exe\u202c\u2066\u2069\u200f",
        "\u2028\u2029\x85\x0b\x0c",
        "k" * 2**20,
    ],
    ids=["end of line", "terminal", "direction", "other ends of line", "a megabyte"],
)
def test_hostile_name_of_a_kind_cannot_forge_a_log_line(root, log_format, hostile):
    stream = io.StringIO()
    set_up(process="worker 3", log_format=log_format, stream=stream)
    logging.getLogger("jobherd.x").warning("job of kind %s", hostile, extra={"kind": hostile, "job": 7})
    text = stream.getvalue()
    assert text.count("\n") == 1, "one line"
    assert text.isascii() or not any(
        c in text for c in "\x1b\r\x07\u202e\u202c\u2066\u2069\u200f\u2028\u2029\x85\x0b\x0c"
    )
    assert "\x1b" not in text
    assert len(text) < 10_000


def test_log_record_factory_that_raises_does_not_prevent_jobherds_log_lines(root):
    """For example, the factory reads a context variable that is not set while no job runs."""

    def make(*args, **kwargs):
        raise LookupError("tenant")

    before = logging.getLogRecordFactory()
    out = io.StringIO()
    set_up(process="worker 0", stream=out)
    try:
        logging.setLogRecordFactory(make)
        keep_factory_quiet()
        logging.getLogger("jobherd.connection").warning("the database is away")
    finally:
        logging.setLogRecordFactory(before)
    assert "the database is away" in out.getvalue()
