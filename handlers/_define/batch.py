"""Handlers that take several jobs in one call: what they are called with, and what their answer says of each job.

A call is for jobs of one kind. What is said of one job must never become another's fate: an answer that cannot be told apart fails the
attempts it was meant for, with a code, and no more. `_outcome` judges each job's own ending, as it does for a handler of single jobs.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, is_typeddict

from jobherd.handlers._define.signature import WHOLE, Signature, resolve_hints
from jobherd.handlers._run.dispositions import Failed, SignalledOutcome
from jobherd.handlers._run.job import Job
from jobherd.handlers._values.outcome import BATCH_ANSWER_INVALID, BATCH_ANSWER_MISSING, Raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("jobherd.job")

_JOBS: Final = "jobs"
"""A first parameter of this name, without annotation, takes the jobs."""
_JOB_LIST: Final = re.compile(r"(?:\w+\.)*\w+\[\s*(?:\w+\.)*Job\s*\]")


class BatchSignature(Signature):
    """What a batch handler takes: a list of jobs, a list of payloads, or both in that order.

    payloads: the parameter for the payloads, or None. To a producer it looks like a handler whose one parameter is a payload.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        given = self.parameters
        jobs = bool(given) and _is_job_list(given[0])
        rest = given[1:] if jobs else given
        if self.takes_job or self.takes_bytes or self.open or not given or len(rest) > 1:
            message = (
                f"{self.name} takes batches, so its parameters are a list of jobs, a list of payloads, or both: "
                "def send(jobs: list[Job], payloads: list[Sms])"
            )
            raise TypeError(message)
        found, _ = resolve_hints(function, given)  # a name that does not exist yet is taken for right
        for parameter in given:
            if parameter.name in found and not _takes_list(found[parameter.name]):
                one = Job.__name__ if jobs and parameter is given[0] else _one_of(found[parameter.name], parameter.annotation)
                message = (
                    f"{self.name} takes batches, so its parameter {parameter.name!r} gets a list of them: "
                    f"write {parameter.name}: list[{one}]"
                )
                raise TypeError(message)
        self.takes_job = jobs
        self.payloads = rest[0] if rest else None
        self.parameters = [inspect.Parameter(WHOLE, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        self.names = self.required = frozenset({WHOLE})
        self.whole = True

    def hints(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return what one payload is annotated as: `Sms` of `list[Sms]`."""
        if self.payloads is None:
            return {}, ()
        found, unchecked = resolve_hints(self.function, [self.payloads])
        item = get_args(found.get(self.payloads.name))
        return ({WHOLE: item[0]} if len(item) == 1 else {}), unchecked

    def arguments(self, payloads: list[Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call, beside the jobs."""
        return {} if self.payloads is None else {self.payloads.name: payloads}


def endings_of(ending: object, jobs: Sequence[int]) -> list[object]:
    """Return for each job of a call how it ended, as `outcome_of` takes it.

    ending: what the call returned, or `Raised(exception)`: an exception, a disposition and None are each job's own. A list or tuple is
        one answer for each job, in order; a dict has them by the job's id. An answer that is an exception counts as raised by that job.
    jobs: the ids of the jobs, in the order in which the handler was handed them.

    >>> endings_of({7: "sent", 8: Failed("no such number")}, [7, 8])
    ['sent', Failed(error='no such number', code=None)]
    """
    if ending is None or isinstance(ending, Raised | SignalledOutcome):
        return [ending] * len(jobs)
    if isinstance(ending, Mapping):
        if unknown := [job for job in ending if job not in jobs]:
            _log.warning("a batch handler answered for %d jobs that it was not called with", len(unknown))
        return [_one(ending[job]) if job in ending else _MISSING for job in jobs]
    if not isinstance(ending, list | tuple):
        return [_WRONG] * len(jobs)
    if len(ending) != len(jobs):
        # Which of them is missing nobody can tell: paired off, a job could be completed that was never worked on.
        error = f"the batch handler was called with {len(jobs)} jobs and returned {len(ending)} answers: answer by job id if some may be left out"
        return [Failed(error, code=BATCH_ANSWER_INVALID)] * len(jobs)
    return [_one(answer) for answer in ending]


_MISSING: Final = Failed("the batch handler gave no answer for this job", code=BATCH_ANSWER_MISSING)
_WRONG: Final = Failed(
    "a batch handler returns None, a list with one answer for each job, or a dict with answers by job id", code=BATCH_ANSWER_INVALID
)


def _one(answer: object) -> object:
    return Raised(answer) if isinstance(answer, BaseException) and not isinstance(answer, SignalledOutcome) else answer


def _is_job_list(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return parameter.name == _JOBS
    if isinstance(annotation, str):
        return _JOB_LIST.fullmatch(annotation.strip("'\" ")) is not None
    return get_args(annotation) == (Job,)


def _takes_list(hint: object) -> bool:
    """Whether a list may be what a parameter of this annotation gets. Of what is no class nobody can tell, and it is taken for right."""
    origin = get_origin(hint) or hint
    if origin in {Union, UnionType}:
        return any(map(_takes_list, get_args(hint)))
    if is_typeddict(origin):
        return False
    try:
        return origin is Any or not isinstance(origin, type) or issubclass(list, origin)
    except TypeError:  # a protocol that cannot be asked
        return True


def _one_of(hint: object, annotation: object) -> str:
    """Return how one payload is annotated: of what holds several, as `tuple[Sms, ...]` and `set[Sms]`, what it holds."""
    origin, held = get_origin(hint), get_args(hint)
    several = held[1:] == (Ellipsis,) if origin is tuple else len(held) == 1
    return _written(held[0] if several and isinstance(origin, type) and issubclass(origin, Iterable) else annotation)


def _written(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\" ")
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
