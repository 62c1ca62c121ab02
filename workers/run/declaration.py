"""Describes the policies of loaded handlers to the supervisor and the database, which load no handlers."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from jobherd.handlers._define.table_store import TableHandler
from jobherd.handlers._enqueue.default import divided
from jobherd.handlers._policy.backoff import Backoff
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.run.signatures import signature_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._enqueue.client_shards import ClientShards
    from jobherd.handlers._policy.option_checks import Wait
    from jobherd.handlers._policy.schedule import Schedule
    from jobherd.workers.database.connection import Session

_log = logging.getLogger("jobherd.worker")


def policy_of(handler: AnyHandler) -> Policy:
    """Return what the supervisor must know of a kind."""
    policy = handler.policy
    return Policy(
        handler.kind,
        policy.max_attempts,
        policy.max_crashes,
        policy.keep_completed_days,
        policy.keep_failed_days,
        _backoff(policy.backoff),
        policy.exclusive,
        isinstance(handler, TableHandler),
        bool(policy.encrypt),
    )


def _backoff(wait: Wait) -> tuple[float, float, float, float]:
    """Return a back-off as four numbers.

    A tuple of waits becomes the nearest curve, and a custom function the default one: the
    supervisor needs the back-off after a crash, and runs no user code.
    """
    if isinstance(wait, Backoff):
        return wait.base, wait.factor, wait.jitter, wait.cap
    if isinstance(wait, tuple):
        growth = wait[1] / wait[0] if len(wait) > 1 and wait[0] > 0 else 1.0
        return wait[0], max(1.0, growth), 0.0, wait[-1]
    return Policy().backoff


def kinds_of(handlers: Mapping[str, AnyHandler]) -> dict[str, list[object]]:
    """Return the parameters of register_kinds.sql."""
    all_of = list(handlers.values())
    return {
        "names": [one.kind for one in all_of],
        "queues": [one.policy.queue for one in all_of],
        "priorities": [one.policy.priority for one in all_of],
        "max_attempts": [one.policy.max_attempts for one in all_of],
        "max_crashes": [one.policy.max_crashes for one in all_of],
        "keep_completed": [one.policy.keep_completed_days for one in all_of],
        "max_running": [one.policy.max_running for one in all_of],
        "rates": [one.policy.rate and one.policy.rate.jobs for one in all_of],
        "pers": [one.policy.rate and one.policy.rate.seconds for one in all_of],
        "bursts": [one.policy.burst for one in all_of],
        "partitions": [None if one.policy.partition is None else _array(one.policy.partition) for one in all_of],
        "keep_failed": [one.policy.keep_failed_days for one in all_of],
        "redacts": [json.dumps(one.policy.redact) for one in all_of],
        "signatures": [signature_of(one) for one in all_of],
    }


def _array(path: tuple[str, ...]) -> str:
    """Return a path as the text of an array of PostgreSQL."""
    return "{" + ",".join(json.dumps(part, ensure_ascii=False) for part in path) + "}"


def _is_here(shards: ClientShards, schedule: Schedule, handler: AnyHandler, here: int, dsn: str) -> bool:
    """Return whether a schedule belongs to this database: its jobs must not run once for each of several."""
    try:
        return shards.is_here(schedule.queue or handler.policy.queue, here, dsn)
    except ValueError as problem:
        _log.warning("schedule %s is not stored: %s", schedule.name, problem)
        return False


def declare(session: Session, supervisor: int, handlers: Mapping[str, AnyHandler], *, dsn: str = "") -> None:
    """Store kinds, limits, rates and schedules of the handlers of a supervisor.

    dsn: address of the database, by which a client with shards of the handlers finds it first.
    """
    kinds = kinds_of(handlers)
    session.run("lease/register_kinds", kinds)
    session.run("lease/declare_limits", kinds)
    session.run("lease/declare_rates", kinds)
    found = [(one, each) for one in handlers.values() for each in one.schedules]
    if found and (shards := divided()) is not None:
        ((here,),) = session.run("observe/show_shard")
        found = [(one, each) for one, each in found if _is_here(shards, each, one, here, dsn)]
    schedules = [each.definition(one.kind) for one, each in found]
    declared = {"supervisor": supervisor, "schedules": json.dumps(schedules)}
    if schedules:
        # Race: a maintenance process must not store what an earlier worker has left after what this one declares.
        session.run("schedule/postpone_declarations", declared | {"schedules": "[]"})
    # Also without any: the handlers may have declared one before a reload.
    for (name,) in session.run("schedule/declare_schedules", declared):
        _log.warning("schedule %s is stored later: an open transaction has locked it", name)
        session.run("schedule/postpone_declarations", declared)
