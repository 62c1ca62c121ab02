"""Batch handlers without a worker: allowed signatures, and the meaning of their answers."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence  # noqa: TC003  # what an annotation names must be there
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from jobherd import Failed, Job, Nack, Snooze, handler
from jobherd.handlers._define.batch import endings_of
from jobherd.handlers._values.outcome import Raised
from jobherd.testing import run, run_batch


@dataclass
class Sms:
    to: str


@handler("sms:send", batch=50, linger="200ms")
def send(jobs: list[Job], messages: list[Sms]) -> list[object]:
    return [f"{job.id} {message.to}" for job, message in zip(jobs, messages, strict=True)]


def test_batch_handler_declares_batch_size_and_linger():
    assert (send.policy.batch, send.policy.linger) == (50, 0.2)
    assert handler("a:b")(lambda: None).policy.batch is None


def test_run_batch_records_one_outcome_per_job():
    ran = run_batch(send, [{"to": "a"}, {"too": "b"}, {"to": "c"}])
    assert [one.outcome.label for one in ran] == ["ok", "poison", "ok"]
    assert [one.result for one in ran] == ["1 a", None, "3 c"]
    assert run(send, Sms("x")).result == "1 x"


def test_payload_of_a_batch_handler_is_one_message_and_is_checked():
    assert send.payload(Sms("x")) == {"to": "x"}
    with pytest.raises(ValueError, match="to"):
        send.payload({"too": "b"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda job, messages: None,
        lambda jobs, messages, more: None,
        lambda jobs, **more: None,
    ],
)
def test_batch_handler_with_other_parameters_is_rejected_at_the_decorator(function: Any):
    with pytest.raises(TypeError, match="takes batches, so its parameters are"):
        handler("a:b", batch=2)(function)


def single(number: int) -> None: ...


def sole(messages: Sms) -> None: ...


def later(jobs: list[Job], message: Sms | None) -> None: ...


def unordered(jobs: set[Job]) -> None: ...


def document(payload: dict[str, int]) -> None: ...


def several(messages: tuple[Sms, ...]) -> None: ...


def streamed(messages: Iterator[Sms]) -> None: ...


def paired(pairs: tuple[int, str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (single, "'number' gets a list of them: write number: list[int]"),
        (sole, "'messages' gets a list of them: write messages: list[Sms]"),
        (later, "'message' gets a list of them: write message: list[Sms | None]"),
        (unordered, "'jobs' gets a list of them: write jobs: list[Job]"),
        (document, "'payload' gets a list of them: write payload: list[dict[str, int]]"),
        (several, "'messages' gets a list of them: write messages: list[Sms]"),
        (streamed, "'messages' gets a list of them: write messages: list[Sms]"),
        (paired, "'pairs' gets a list of them: write pairs: list[tuple[int, str]]"),
    ],
)
def test_batch_parameter_that_is_not_a_list_is_rejected_at_the_decorator(function: Any, remedy: str):
    with pytest.raises(
        TypeError, match=f"{re.escape(function.__name__)} takes batches, so its parameter {re.escape(remedy)}"
    ):
        handler("a:b", batch=2)(function)
    evaluated = resolved(function)
    with pytest.raises(TypeError, match="takes batches, so its parameter"):
        handler("a:b", batch=2)(evaluated)


def resolved(function: Any) -> Any:
    """Return the function with evaluated annotations, as in a module without `from __future__ import annotations`."""
    copy = types.FunctionType(function.__code__, function.__globals__)
    copy.__annotations__ = get_type_hints(function)
    return copy


def bare(numbers) -> None: ...


def plain(numbers: list) -> None: ...  # type: ignore[type-arg]


def sequence(numbers: Sequence[int]) -> None: ...


def anything(numbers: Any) -> None: ...


def one_of_two(numbers: list[int] | None) -> None: ...


def unknown(numbers: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [bare, plain, sequence, anything, one_of_two, unknown])
def test_batch_parameter_is_accepted_if_a_list_fits_or_the_annotation_is_unknown(function: Any):
    assert handler("a:b", batch=2)(function).policy.batch == 2


def test_error_names_the_invalid_batch_option_and_the_fix():
    for batch in (0, 501, True, "5", 2.0):
        with pytest.raises(ValueError, match="batch must be a whole number from 1 to 500"):
            handler("a:b", batch=batch)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="requires batch=N"):
        handler("a:b", linger="1s")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="linger must be at most 60 s"):
        handler("a:b", batch=2, linger="61s")


def test_none_a_disposition_or_an_exception_applies_to_every_job_of_the_batch():
    error = Raised(ValueError("x"))
    snooze = Snooze("1h")
    assert endings_of(None, [1, 2]) == [None, None]
    assert endings_of(error, [1, 2]) == [error, error]
    assert endings_of(snooze, [1, 2]) == [snooze, snooze]


def test_batch_answers_are_matched_by_order_or_by_job_id():
    nack = Nack("1s")
    assert endings_of(["a", nack], [7, 8]) == ["a", nack]
    assert endings_of({8: "b", 7: None}, [7, 8]) == [None, "b"]
    error = ValueError("x")
    assert endings_of((error, "b"), [7, 8]) == [Raised(error), "b"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("text", "BATCH_ANSWER_INVALID"),
        (17, "BATCH_ANSWER_INVALID"),
        (["one"], "BATCH_ANSWER_INVALID"),
        ({9: "x"}, "BATCH_ANSWER_MISSING"),
    ],
)
def test_invalid_or_missing_batch_answer_fails_the_affected_jobs(answer: object, code: str):
    for ending in endings_of(answer, [1, 2]):
        assert isinstance(ending, Failed)
        assert ending.code == code


def test_answer_for_a_job_outside_the_batch_is_logged(caplog: pytest.LogCaptureFixture):
    assert endings_of({1: "a", "1": "b"}, [1]) == ["a"]
    assert "1 jobs that it was not called with" in caplog.text


def test_exceptions_returned_by_an_async_batch_handler_count_as_raised():
    @handler("web:fetch", batch=3)
    async def fetch(urls: list[str]) -> list[object]:
        return [ValueError(url) if url == "bad" else url for url in urls]

    assert [one.outcome.label for one in run_batch(fetch, ["a", "bad"])] == ["ok", "retry"]
