"""Handlers of several jobs per call: their arguments, and how the return value maps to each job.

All jobs of a call are of one kind. One job's answer must never decide another job. An answer that
cannot be matched fails only the attempts it was meant for, with an error code.
`handlers/_run/classify.py` then decides each job's outcome, as for a handler of single jobs.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, is_typeddict

from jobherd.handlers._define.binding import WHOLE
from jobherd.handlers._define.signature import Signature, resolve_hints
from jobherd.handlers._run.dispositions import Failed, SignalledOutcome
from jobherd.handlers._run.job import Job
from jobherd.handlers._values.outcome import BATCH_ANSWER_INVALID, BATCH_ANSWER_MISSING, Raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("jobherd.job")

_JOBS: Final = "jobs"
"""A first parameter of this name, without annotation, gets the jobs."""
_JOB_LIST: Final = re.compile(r"(?:\w+\.)*\w+\[\s*(?:\w+\.)*Job\s*\]")


class BatchSignature(Signature):
    """Parameters of a batch handler: a list of jobs, a list of payloads, or both in that order.

    payloads: the parameter for the payloads, or None. A producer sees a handler whose only
        parameter is one payload.
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
        found, _ = resolve_hints(function, given)  # an annotation that cannot be resolved yet is accepted
        for parameter in given:
            if parameter.name in found and not _takes_list(found[parameter.name]):
                one = (
                    Job.__name__
                    if jobs and parameter is given[0]
                    else _one_of(found[parameter.name], parameter.annotation)
                )
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
        """Return the annotation of one payload: `Sms` for `list[Sms]`."""
        if self.payloads is None:
            return {}, ()
        found, unchecked = resolve_hints(self.function, [self.payloads])
        item = get_args(found.get(self.payloads.name))
        return ({WHOLE: item[0]} if len(item) == 1 else {}), unchecked

    def arguments(self, payloads: list[Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call, without the jobs."""
        return {} if self.payloads is None else {self.payloads.name: payloads}


def endings_of(ending: object, jobs: Sequence[int]) -> list[object]:
    """Return how each job of a call ended, in the form that `outcome_of` takes.

    ending: what the call returned, or `Raised(exception)`. An exception, a disposition and None
        apply to every job. A list or tuple holds one answer per job, in order; a dict holds answers
        by job id. An answer that is an exception counts as raised by that job.
    jobs: ids of the jobs, in the order in which the handler got them.
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
        # Which answer is missing is unknown: matching by position could complete a job that was
        # never processed.
        error = (
            f"the batch handler was called with {len(jobs)} jobs and returned {len(ending)} answers: "
            "answer by job id if some may be left out"
        )
        return [Failed(error, code=BATCH_ANSWER_INVALID)] * len(jobs)
    return [_one(answer) for answer in ending]


_MISSING: Final = Failed("the batch handler gave no answer for this job", code=BATCH_ANSWER_MISSING)
_WRONG: Final = Failed(
    "a batch handler returns None, a list with one answer for each job, or a dict with answers by job id",
    code=BATCH_ANSWER_INVALID,
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
    """Return whether the annotation accepts a list.

    An annotation that is not a class is accepted.
    """
    origin = get_origin(hint) or hint
    if origin in {Union, UnionType}:
        return any(map(_takes_list, get_args(hint)))
    if is_typeddict(origin):
        return False
    try:
        return origin is Any or not isinstance(origin, type) or issubclass(list, origin)
    except TypeError:  # a protocol that does not support issubclass
        return True


def _one_of(hint: object, annotation: object) -> str:
    """Return the annotation of one payload; for `set[Sms]` and the like, that of an item."""
    origin, held = get_origin(hint), get_args(hint)
    several = held[1:] == (Ellipsis,) if origin is tuple else len(held) == 1
    return _written(held[0] if several and isinstance(origin, type) and issubclass(origin, Iterable) else annotation)


def _written(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\" ")
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
