"""Checks, when a worker starts, that applications' tables are as their stores declare."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg

from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.table_statements import compose, find_columns, misfits
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.ipc.pipes import Problem, send
from jobherd.workers.stores.session import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.spec import ChildSettings, ChildSpec

_log = logging.getLogger("jobherd.tables")


def are_fit(tables: Sequence[TableHandler], session: Session, spec: ChildSpec) -> bool:
    """Return whether the tables are as their stores declare, however long the database is away.

    Problems are reported to the supervisor, which logs them once for all workers.
    """
    backoff = Backoff(spec.settings.db_retry_initial, spec.settings.db_retry_max)
    while True:
        session.run("observe/show_time")
        try:
            problems = look_at_tables(spec.settings, tables, pooled=session.pooled)
        except psycopg.Error as problem:
            if not is_retryable(problem):
                raise
            session.waiting.rest(backoff.next(), patient=False)
            continue
        for each in problems:
            if not send(spec.report, Problem(each)):
                _log.error("%s", each)
        return not problems


def look_at_tables(settings: ChildSettings, tables: Iterable[TableHandler], *, pooled: bool) -> list[str]:
    """Return a sentence for each problem of the stores' tables, with its fix.

    Raises psycopg.Error.
    """
    problems: list[str] = []
    with connect(settings, "jobherd:check", pooled=pooled, context=OURS) as connection:
        for table in tables:
            names, store = table.store.names, table.store
            rows = connection.execute(find_columns(settings.schema), {"table": names.quoted}).fetchall()
            found = misfits(names, {name: (type_, unique) for name, type_, unique in rows})
            if not found:
                try:
                    columns = [
                        column.name for column in connection.execute(compose("check_columns", names)).description or ()
                    ]
                    found += store.scanner.misfits(columns)
                    connection.execute(compose("check_order", names))
                except psycopg.Error as problem:
                    if not problem.sqlstate:
                        raise
                    found.append(
                        "the server does not understand its columns, view or order_by: "
                        f"{sanitize(problem.diag.message_primary, 500)}"
                    )
            problems += [f"store {store.name} ({table.file}:{table.line}): {each}" for each in found]
    return problems
