"""Turns a handler's return value or exception into an outcome, within a time limit.

Return values and exceptions are user code: an iterator, an exception's `__str__`. A job that never
ends while it is judged gets an outcome all the same. What each end means is decided in
`handlers/_run/classify.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.batch import endings_of
from jobherd.handlers._run.classify import outcome_of, unjudged
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._values.outcome import Outcome, Raised

if TYPE_CHECKING:
    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.process.interrupt import Interrupts

JUDGING: Final = 5.0
"""Seconds to turn the end of a handler into an outcome."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload could not be decoded, or does not fit the handler's parameters."""

    problem: BaseException


def exception_of(ending: object) -> BaseException | None:
    """Return the exception with which a handler or its payload ended, or None."""
    if isinstance(ending, Raised):
        return ending.exception
    return ending.problem if isinstance(ending, Unreadable) else None


def judge(interrupts: Interrupts, ending: object, handler: AnyHandler, *, attempt: int, most: int) -> Outcome:
    """Return the outcome of an attempt. ending: the return value, Raised or Unreadable."""
    interruption = interrupts.judge(JUDGING)
    # As in executor.py: an interrupt can be raised at any point between the two assignments of
    # `open`, and nowhere else.
    try:
        interrupts.open = True
        if isinstance(ending, Unreadable):
            outcome = unreadable(ending.problem)
        else:
            outcome = outcome_of(
                ending, policy=handler.policy, attempt=attempt, max_attempts=most, interruption=interruption
            )
        interrupts.open = False
    except BaseException:
        interrupts.open = False
        error = f"what the handler returned or raised could not be interpreted within {JUDGING:g} s"
        outcome = unjudged(ending, error, attempt=attempt, last=attempt >= most, interruption=interruption)
    interrupts.raised = interruption or interrupts.raised
    return outcome


def divide(interrupts: Interrupts, ending: object, ids: list[int]) -> dict[int, object]:
    """Return how each job of a batch handler's call ended, by id."""
    before = interrupts.judge(JUDGING)
    try:
        interrupts.open = True
        found: dict[int, object] = dict(zip(ids, endings_of(ending, ids), strict=True))
        interrupts.open = False
    except BaseException as problem:
        interrupts.open = False
        found = dict.fromkeys(ids, Raised(problem))
    interrupts.raised = before or interrupts.raised
    return found
