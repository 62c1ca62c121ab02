"""Defines the panels of `top`: their columns, and the text of each cell.

Only values and text: no drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.console import plain, show_span
from jobherd.supervisor.cli.top.panel import Bar, Column, Panel, Sort
from jobherd.workers.inspect.failures import given_code
from jobherd.workers.inspect.phrases import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.cli.top.panel import Cell
    from jobherd.supervisor.cli.top.watch import Look, Row

FRESH: Final = 30.0
"""Seconds for which CPU and memory are shown; a supervisor reports them every 15 s."""


def count(number: int, *, more: bool = False) -> str:
    """Return a number of jobs.

    >>> count(1204), count(100_000, more=True)
    ('1,204', '100,000+')
    """
    return f"{number:,}" + ("+" if more else "")


def fleet(look: Look) -> list[Row]:
    """Return the supervisors, each with totals over its child processes."""
    rows = []
    for supervisor in look.supervisors:
        workers = [
            child for child in look.children if child["supervisor"] == supervisor["id"] and child["kind"] == "worker"
        ]
        busy = sum(1 for child in workers if child["job"] is not None)
        jobs = sum(int(child["running"]) for child in workers)
        said = _said(supervisor)
        rows.append(
            supervisor
            | {"workers": len(workers), "busy": busy, "jobs": jobs, "at": f"{supervisor['host']}/{supervisor['pid']}"}
            | {name: sum(child.get(name) or 0 for child in said) if said else None for name in ("cpu", "rss")}
        )
    return rows


def _said(supervisor: Row) -> list[Row]:
    """Return the child processes that a supervisor reported.

    If the report is too old to be shown next to current values, return nothing.
    """
    facts = supervisor.get("facts")
    if not isinstance(facts, dict) or supervisor["facts_age"] > FRESH:
        return []
    return [child for child in facts.get("children") or () if isinstance(child, dict) and child.get("pid")]


def _text(name: str, style: str = "") -> Callable[[Row], Cell]:
    return lambda row: (plain("" if row[name] is None else row[name]), style)


def _span(name: str) -> Callable[[Row], Cell]:
    return lambda row: (show_span(row[name]), "")


def _cpu(row: Row) -> Cell:
    return ("-", "dim") if row["cpu"] is None else (f"{100 * row['cpu']:.0f}%", "")


def _memory(row: Row) -> Cell:
    return ("-", "dim") if row["rss"] is None else (size(row["rss"]), "")


def _lease(row: Row) -> Cell:
    if row["expired"]:
        return f"expired {show_span(row['lease_left'])} ago", "red"
    return show_span(row["lease_left"]), ""


def _busy(row: Row) -> Cell:
    return f"{row['busy']} of {row['workers']}", "cyan" if row["busy"] else ""


def _depth(state: str, style: str = "") -> Callable[[Row], Cell]:
    return lambda row: (
        count(row[state], more=row[f"{state}_capped"]) if row[state] else "-",
        style if row[state] else "dim",
    )


def _running(row: Row) -> Cell:
    text = count(row["running"]) if row["running"] else "-"
    if row["most"] is not None:
        return f"{row['running']} of {row['most']}", "yellow" if row["running"] >= row["most"] else "cyan"
    return text, "cyan" if row["running"] else "dim"


def _state(row: Row) -> Cell:
    if not row["paused"]:
        return "", ""
    return f"paused by {plain(row['paused_by'] or '?')}" + (
        f": {plain(row['reason'])}" if row["reason"] else ""
    ), "yellow"


def _job(row: Row) -> Cell:
    return f"{row['id']}" + (f" +{row['held'] - 1}" if row["held"] > 1 else ""), ""


def _child(row: Row) -> Cell:
    place = " (remote)" if row["slot"] is None else f"/{row['slot']}"
    return "-" if row["host"] is None else plain(row["host"]) + place, ""


def _progress(row: Row) -> Cell:
    note = "cancelling" if row["cancelled"] else plain(row["note"] or "")
    return Bar(row["fraction"], note)


def _when(row: Row) -> Cell:
    """When the job failed, or when it runs again."""
    return (
        (f"in {show_span(row['next_in'])}", "yellow") if row.get("next_in") is not None else (show_span(row["ago"]), "")
    )


def _error(row: Row) -> Cell:
    text = f"{plain(given_code(row['error_code']))} {plain(row['error'] or '')}".strip()
    return text, "yellow" if row.get("next_in") is not None else "red"


FLEET: Final = Panel(
    "FLEET",
    fleet,
    "id",
    (
        Column("", _text("at"), least=12),
        Column("VERSION", _text("version"), least=5, spare=2),
        Column("UP", _span("up_for"), right=True, spare=1),
        Column("LEASE", _lease, right=True),
        Column("BUSY", _busy, right=True),
        Column("JOBS", _text("jobs"), right=True),
        Column("CPU", _cpu, right=True, spare=3),
        Column("MEM", _memory, right=True, spare=4),
    ),
    (
        Sort("name", lambda row: row["at"]),
        Sort("busy", lambda row: row["busy"], falling=True),
        Sort("up", lambda row: row["up_for"]),
    ),
    ("at", "version"),
    "no supervisor holds a lease, so nothing runs: start one with `jobherd run`",
)
QUEUES: Final = Panel(
    "QUEUES",
    lambda look: look.queues,
    "queue",
    (
        Column("", _text("queue"), least=12),
        Column("READY", _depth("ready", "bold"), right=True),
        Column("SCHEDULED", _depth("scheduled"), right=True, spare=1),
        Column("RUNNING", _running, right=True),
        Column("OLDEST", _span("oldest"), right=True),
        Column("STATE", _state, least=6, grows=True),
    ),
    (
        Sort("ready", lambda row: row["ready"], falling=True),
        Sort("name", lambda row: row["queue"]),
        Sort("oldest", lambda row: row["oldest"] or 0.0, falling=True),
        Sort("running", lambda row: row["running"], falling=True),
    ),
    ("queue", "reason"),
    "no queue holds a job, none is paused or limited",
)
RUNNING: Final = Panel(
    "RUNNING",
    lambda look: look.running,
    "id",
    (
        Column("", _job, right=False),
        Column("KIND", _text("kind"), least=12),
        Column("QUEUE", _text("queue"), least=7, spare=2),
        Column("WORKER", _child, least=8, spare=1),
        Column("FOR", _span("held_for"), right=True),
        Column("PROGRESS", _progress, least=16, grows=True),
    ),
    (
        Sort("longest", lambda row: row["held_for"], falling=True),
        Sort("progress", lambda row: row["fraction"] or 0.0, falling=True),
        Sort("kind", lambda row: row["kind"]),
        Sort("queue", lambda row: row["queue"]),
        Sort("id", lambda row: row["id"], falling=True),
    ),
    ("id", "kind", "queue", "host", "note"),
    "nothing runs",
)
FAILURES: Final = Panel(
    "FAILURES",
    lambda look: look.failures,
    "id",
    (
        Column("", _text("id")),
        Column("KIND", _text("kind"), least=12),
        Column("QUEUE", _text("queue"), least=7, spare=1),
        Column("AGO", _when, right=True),
        Column("ERROR", _error, least=16, grows=True),
    ),
    (
        Sort("latest", lambda row: row["ago"]),
        Sort("kind", lambda row: row["kind"]),
        Sort("error", lambda row: row["error_code"] or ""),
    ),
    ("id", "kind", "queue", "error_code", "error"),
    "no job that is still kept has failed",
)
PANELS: Final = (FLEET, QUEUES, RUNNING, FAILURES)
