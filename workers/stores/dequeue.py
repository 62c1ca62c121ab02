"""Takes one record of an application's table, as far as the store's `before_claim` admits one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from jobherd.handlers._define.claim_filter import Only
from jobherd.handlers._enqueue.adapters import OurCursor
from jobherd.handlers._values.outcome import Raised
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.table_statements import compose
from jobherd.workers.database.errors import is_condition_wrong
from jobherd.workers.stores.record import Taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.process.spec import ChildSettings
    from jobherd.workers.run.hooks import HookCaller

_log = logging.getLogger("jobherd.tables")


def dequeue(
    connection: psycopg.Connection[Any], table: TableHandler, settings: ChildSettings, hooks: HookCaller
) -> Taken | None:
    """Take a record and return it, or None if none may be taken now. Raises psycopg.Error."""
    only = _condition_of(table, hooks)
    if only is None:
        return None
    condition, parameters = only
    statement = compose("dequeue_record", table.store.names, settings.schema, condition)
    # The parameters of a condition are the application's, and are encoded by adapters it
    # has registered.
    cursor = OurCursor(connection) if condition == "true" else connection.cursor(row_factory=tuple_row)
    try:
        row = cursor.execute(
            statement, {**parameters, "jobherd_host": settings.host, "jobherd_kind": table.kind}
        ).fetchone()
    except psycopg.Error as problem:
        if condition == "true" or not is_condition_wrong(problem):
            raise
        _log.error(
            "PostgreSQL rejects a condition of before_claim: %s",
            sanitize(problem, 500),
            extra={"kind": table.kind},
        )
        return None
    return None if row is None else Taken._make(row)


def _condition_of(table: TableHandler, hooks: HookCaller) -> tuple[str, Mapping[str, Any]] | None:
    """Return the condition under which a record of the store may be taken now, and its parameters.

    None: no record may be taken.
    """
    hook = table.store.asked
    if hook is None:
        return "true", {}
    match hooks.call(hook, lambda: hook(hooks.child)):
        case None | True:
            return "true", {}
        case Only(condition=condition, parameters=parameters):
            if condition is None:
                return "true", {}
            return condition if isinstance(condition, str) else condition.as_string(), parameters
        case answer:
            if answer is not False and not isinstance(answer, Raised):
                _log.error(
                    "before_claim of %s returned a %s: return None, False or Only(...)",
                    table.kind,
                    type(answer).__name__,
                )
            return None
