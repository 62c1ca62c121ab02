"""Decides what is recorded for each task of a session: for its result, or because its lease expired.

It reads the bookkeeping and changes nothing. The rules of outcomes are in `results.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages as m
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.dispositions import Failed
from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.gateway.actions import Found, TaskRef
from jobherd.workers.gateway.results import DEFAULT, InvalidResultError, finished_of
from jobherd.workers.gateway.state import TaskState
from jobherd.workers.job.finished import Finished

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobherd.workers.gateway.actions import ExpireTasks
    from jobherd.workers.gateway.peer import Worker
    from jobherd.workers.gateway.state import Session

LEASE_EXPIRED: Final = "LEASE_EXPIRED"
MESSAGE_TOO_LARGE: Final = "MESSAGE_TOO_LARGE"
_TOO_LARGE_DELAY: Final = 60.0
"""Seconds until a task that no message can carry is tried again: another client may take larger ones."""

Judged = dict[TaskRef, Finished | None]
"""What to record for each result; None: the session does not hold the task."""


def judge(session: Session, worker: Worker, results: Iterable[m.Result], now: float) -> tuple[Judged, list[m.Refusal]]:
    """Return what to record for the results of a message, and the refusals of those that are invalid.

    A task whose end is being recorded already is not recorded again.
    """
    judged: Judged = {}
    refusals: list[m.Refusal] = []
    for result in results:
        ref = TaskRef(result.task_id, result.claim)
        if ref in judged:
            continue
        task = session.task(ref)
        if task is None or task.state is TaskState.CLOSING:
            judged[ref] = None
            continue
        try:
            finished = finished_of(result, task.job, worker.rules_of(task.job.kind), now=now)
            judged[ref] = finished._replace(progress=task.progress) if task.progress else finished
        except InvalidResultError as problem:
            refusals.append(
                m.Refusal(
                    task=m.TaskRef(task_id=ref.task, claim=ref.claim),
                    reason=m.Refusal.REASON_INVALID,
                    message=str(problem),
                )
            )
    return judged, refusals


def judge_expired(session: Session, worker: Worker | None, action: ExpireTasks, now: float) -> dict[TaskRef, Finished]:
    """Return what to record for tasks whose lease has expired."""
    finished = {}
    for ref in action.tasks:
        task = session.task(ref)
        if task is None:
            continue
        rules = DEFAULT if worker is None else worker.rules_of(task.job.kind)
        outcome = outcome_of(
            Failed("the worker sent no result and no extension within the lease of the task", LEASE_EXPIRED),
            policy=rules.policy,
            attempt=task.job.attempt,
            max_attempts=task.job.max_attempts,
        )
        finished[ref] = Finished(ref.task, outcome, 0.0, now, rules.keep_failed)
    return finished


def too_large(tasks: Iterable[m.Task], most: int) -> Judged:
    """Return what to record for tasks that no message to this client can carry."""
    error = f"the task is larger than the {most} bytes that the worker can receive (Hello.max_message_bytes)"
    outcome = Outcome("snoozed", delay=_TOO_LARGE_DELAY, started=False, error=error, code=MESSAGE_TOO_LARGE)
    return {TaskRef(task.id, task.claim): Finished(task.id, outcome) for task in tasks}


def apply_rules(worker: Worker | None, found: Found, tasks: Mapping[int, m.WorkResponse]) -> Found:
    """Return claimed jobs with the limits of their kinds, and enter the limits into the tasks."""
    if not found.token or worker is None or not (worker.rules or worker.stopping):
        return found
    jobs = []
    for job, task in zip(found.jobs, tasks[found.token].tasks.tasks, strict=True):
        rules = worker.rules_of(job.kind)
        task.timeout_seconds = job.timeout or rules.timeout
        task.max_attempts = job.max_attempts or rules.policy.max_attempts
        jobs.append(job._replace(timeout=task.timeout_seconds and task.timeout_seconds + worker.stopping))
    return found._replace(jobs=tuple(jobs))
