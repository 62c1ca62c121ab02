"""`doctor`: queries everything in the database that can keep jobs waiting, and prints what to do.

This module queries and prints; the other modules of this folder judge the results. It changes nothing: the schema to
compare with is created in a transaction that is rolled back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.missing_schema import migrating
from jobherd.sql.drift import MigratingError, drift
from jobherd.sql.migrate import RenamedError, SchemaError, check_server, pending
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import Session, chosen, connect, explained, load_settings, why_away
from jobherd.supervisor.cli.doctor import backlog, fleet, flows, schedules, schema, server, vacuum
from jobherd.supervisor.cli.doctor.finding import Finding
from jobherd.supervisor.cli.doctor.report import print_report
from jobherd.workers.database.errors import takes_no_writes
from jobherd.workers.inspect.attention import PARAMETERS, attention
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from jobherd.workers.inspect.attention import Item

_LATE: Final = 60.0
"""Seconds for which the first job of a queue may be due."""
_MOST: Final = 10_000
"""Most waiting jobs whose kinds are examined."""
_GROUPS: Final = 20
"""Most pairs of kind and code of retrying jobs that are reported."""
_ARRIVES_IN: Final = 2.0
"""Seconds within which a notification to this session itself must arrive."""
_BRIEFLY: Final = 2.0
"""Seconds to wait for another session's lock on a table of Jobherd."""


def _doctor(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=(*CONNECTION, "listen_dsn"))
    with chosen(settings) as dsn, explained(), connect(dsn, name="doctor") as connection:
        items: list[Item] = []
        findings = list(_examine(Session(connection, settings.schema), settings.listen_dsn, items))
    wrong = sum(finding.weight == "wrong" for finding in findings)
    if arguments.json:
        console.print_json(
            {
                "ok": not wrong,
                "attention": [{"what": item.what, "text": item.text} for item in items],
                "findings": [
                    {"weight": f.weight, "about": f.about, "text": f.text, "remedy": f.remedy or None} for f in findings
                ],
            }
        )
    else:
        print_report(findings, wrong, items)
    return ExitCode.WRONG if wrong else ExitCode.DONE


def _examine(at: Session, listen_dsn: str | None, items: list[Item]) -> Iterator[Finding]:
    """Yield the findings, and add to `items` what needs attention, as the dashboard and `top` show it."""
    settings = at.rows("doctor/list_settings")
    values = {row["name"]: row["setting"] for row in settings}
    yield from server.settings(settings)
    before = time.time()
    state = at.row("doctor/show_server")
    seen = state["now"].timestamp() - (before + time.time()) / 2
    limit = int(values["max_connections"]) - int(values["superuser_reserved_connections"])
    yield from server.server(state, seen=seen, limit=limit)
    yield from vacuum.holders(at.rows("doctor/list_holders"))
    if listen_dsn is None:
        promised = at.connection.info.backend_pid
        yield from server.pooler(reported=promised, real=state["backend"])
        if promised == state["backend"]:  # otherwise a shared backend would keep listening
            yield from _listen(at)
    else:
        yield from _listen_there(listen_dsn, at.schema)
    try:
        check_server(at.connection)
    except SchemaError as problem:
        yield Finding("wrong", "server", str(problem), "name another database, with --dsn or JOBHERD_DSN")
        return
    yield from vacuum.locks(at.rows("doctor/list_locks", {"schema": at.schema}))
    yield from vacuum.advisory_locks(at.rows("doctor/list_wake_locks"))
    try:
        with at.connection.transaction():
            at.rows("session/set_lock_timeout", {"milliseconds": round(_BRIEFLY * 1000)})
            yield from _look_inside(at, items)
    except psycopg.errors.LockNotAvailable:
        yield Finding(
            "wrong",
            "locks",
            f"another session has locked a Jobherd table for more than {_BRIEFLY:g} s: checks without a finding here "
            "were not made",
            "SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity shows which sessions wait, and for which",
        )
    except psycopg.errors.InsufficientPrivilege as problem:
        yield Finding(
            "wrong",
            "privileges",
            f"this role cannot read the schema: {why_away(problem)}",
            "GRANT jobherd_read to it",
        )


def _look_inside(at: Session, items: list[Item]) -> Iterator[Finding]:
    """Examine the schema and its contents."""
    unseen = at.rows("doctor/list_hidden_tables", {"schema": at.schema})
    yield from schema.hidden(unseen)
    if any(row["hidden"] for row in unseen):
        return
    try:
        missing = pending(at.connection, schema=at.schema)
    except RenamedError as problem:
        yield Finding("wrong", "schema", str(problem), problem.remedy)
        return
    except SchemaError as problem:
        yield Finding("wrong", "schema", str(problem), "run the doctor of that version")
        return
    if missing:
        lacks = f"the schema {at.schema} lacks {count(missing, 'migration', 'migrations')}"
        yield Finding("wrong", "schema", lacks, migrating(at.schema))
        return
    yield from _compare(at)
    yield from server.sessions(at.rows("doctor/list_session_roles"))
    named = {"schema": at.schema}
    yield from schema.roles(at.rows("doctor/list_roles", named), migrating(at.schema))
    yield from schema.indexes(at.rows("doctor/list_broken_indexes", named))
    yield from vacuum.tables(at.rows("doctor/list_vacuum_states", named))
    unserved = at.rows("doctor/list_unserved", {"late": _LATE})
    unhandled = at.rows("doctor/list_unhandled", {"most": _MOST})
    yield from fleet.fleet(at.row("doctor/show_fleet"), unserved, unhandled)
    try:
        with at.connection.transaction():  # a savepoint: the checks after this one still run
            stray = at.row("doctor/find_stray_rows")["stray"]
    except psycopg.errors.InsufficientPrivilege as problem:
        text = f"not examined: {problem.diag.message_primary}"
        yield Finding(
            "note", "partitions", text, "run doctor as a member of jobherd_read, or as the owner of the schema"
        )
    else:
        yield from schema.partitions(stray=stray)
    yield from fleet.keys(at.rows("observe/count_unrunnable", {"served": None, "most": _MOST}))
    try:
        with at.connection.transaction():
            paused, gates = (
                at.rows("doctor/list_paused", {"most": _MOST}),
                at.rows("observe/list_limits", {"most": 1000}),
            )
            ruled = at.rows("doctor/list_idle_rules", {"most": _MOST})
            retrying = at.rows("observe/list_retrying", {"most": _MOST, "rows": _GROUPS})
            listed = at.rows("doctor/list_schedules")
            joined = at.row("doctor/show_flows")
            items += attention(at.rows("observe/list_attention", dict(PARAMETERS)))
    except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction) as problem:
        yield Finding(
            "note", "backlog", f"not examined: {problem.diag.message_primary}", "repair the schema as described above"
        )
        return
    yield from backlog.paused(paused, most=_MOST)
    yield from backlog.limits(gates)
    yield from backlog.rules(ruled)
    yield from backlog.retrying(retrying)
    yield from schedules.schedules(listed)
    yield from flows.flows(joined)


def _compare(at: Session) -> Iterator[Finding]:
    try:
        found = drift(at.connection, schema=at.schema)
    except psycopg.errors.InsufficientPrivilege:
        yield Finding(
            "note",
            "schema",
            "this role may not create a schema to compare with",
            "run this as the owner of the database",
        )
    except MigratingError:
        yield Finding(
            "note",
            "schema",
            "not compared: another session is migrating or comparing the schema",
            "run doctor again; a slow migration waits for a long transaction, which is listed under vacuum",
        )
    except (psycopg.errors.ProgramLimitExceeded, psycopg.errors.ReadOnlySqlTransaction) as problem:
        yield _untried("schema", problem)
    else:
        yield from schema.schema(found)


def _listen_there(listen_dsn: str, schema: str) -> Iterator[Finding]:
    """Listen at the address of --listen-dsn.

    If that address does not answer, report it as a finding: all other checks use another
    connection.
    """
    try:
        with connect(listen_dsn, name="doctor") as listener:
            there = Session(listener, schema)
            promised, real = listener.info.backend_pid, there.row("doctor/show_server")["backend"]
            yield from server.pooler(reported=promised, real=real, listens=True)
            if promised == real:
                yield from _listen(there)
    except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
        yield Finding(
            "wrong",
            "listen",
            f"--listen-dsn does not answer, and jobs wait for the poll: {why_away(problem)}",
            "correct the address in --listen-dsn",
        )


def _listen(at: Session) -> Iterator[Finding]:
    """Send a notification to this session itself, and check that it arrives."""
    remedy = "give the server's own address in --listen-dsn"
    try:
        at.connection.execute(sql.load("doctor/listen_briefly"))
    except psycopg.Error as problem:
        if at.connection.broken:
            raise
        yield Finding(
            "wrong",
            "listen",
            f"the server rejects LISTEN, and jobs wait for the poll: {str(problem).splitlines()[0]}",
            remedy,
        )
        return
    try:
        at.connection.execute(sql.load("doctor/notify_briefly"))
    except psycopg.errors.ProgramLimitExceeded as problem:
        yield _untried("listen", problem)
        return
    notified = any(True for _ in at.connection.notifies(timeout=_ARRIVES_IN, stop_after=1))
    if notified:
        yield Finding("ok", "listen", "a notification arrives")
    else:
        yield Finding(
            "wrong",
            "listen",
            f"a notification from this session to itself did not arrive within {_ARRIVES_IN:g} s: jobs wait for the "
            "poll",
            remedy,
        )


def _untried(about: str, problem: psycopg.Error) -> Finding:
    """Report that the server rejected the check itself.

    Another check finds the cause of that rejection, and the user must fix the cause first.
    """
    if not (takes_no_writes(problem) or isinstance(problem, psycopg.errors.ReadOnlySqlTransaction)):
        raise problem
    return Finding(
        "note",
        about,
        f"not examined: the server rejects it: {problem.diag.message_primary}",
        "fix the finding about that first",
    )


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


COMMANDS: Final = (
    Command(
        "doctor",
        "find what keeps jobs waiting, with a fix for each finding",
        "  jobherd doctor --dsn postgresql://jobs@db/app",
        _nothing,
        _doctor,
        about="Check the server's settings, what holds vacuum back, bloat, indexes and drift of the schema (with "
        "the SQL that\n"
        "fixes it), poolers, LISTEN, clocks, and queues and kinds that no supervisor serves. Changes nothing. Exit "
        "code 1 when\n"
        "something is wrong.",
        settings=(*CONNECTION, "listen_dsn"),
        lists=True,
        spans="each",
    ),
)
