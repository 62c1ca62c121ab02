"""Shows the supervisors of the fleet with their child processes and remote workers.

It also sends fleet commands to supervisors.

While a page is open, it asks each supervisor from time to time to publish a report every second.
Without an open page no supervisor is asked. The reports were written by other processes, perhaps of
another version: each value is checked before it is shown.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from starlette.routing import Route

from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.json_values import document, known, listed, number_of, text
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.render import duration, page
from jobherd.workers.dashboard.request import viewer_of
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form

MOST: Final = 200
"""Supervisors on one page."""
WATCH: Final = 10.0
"""Seconds for which supervisors are asked to publish reports."""
RENEW: Final = 3.0
"""Seconds left of that time at which they are asked again."""
OLD: Final = 30.0
"""Seconds after which a report is outdated. A supervisor publishes one every 15 s on its own."""
PATIENCE: Final = 3.0
"""Seconds to wait for the answer to a fleet command."""
GLANCE: Final = 0.1
LONGEST: Final = 300
"""Characters of a reason."""
ORDERS: Final = {
    "drain": "drains: it claims nothing more, and exits when its running jobs have ended",
    "add": "starts one more worker",
    "remove": "stops one worker",
    "reload": "reloads: its workers are replaced one by one",
}
"""The fleet commands of this page, and what the supervisor then does."""
RUN_STATES: Final = frozenset({"serving", "draining", "fast shutdown", "immediate shutdown"})
STATES: Final = frozenset({"computing", "waiting", "idle", "booting", "leaving", "stopped", "resting"})
QUIET: Final = frozenset({"requested", "recycled"})
"""Causes of an end that was requested."""


async def ask(db: Database, _argument: str = "") -> dict[str, Any]:
    """Return the context of the page."""
    rows = await db.rows("observe/list_fleet", {"most": MOST})
    await _request_reports(db, rows)
    sessions = await db.rows("observe/list_sessions", {"most": MOST})
    supervisors = [supervisor(row, [one for one in sessions if one["via"] == row["id"]]) for row in rows]
    known = {one["id"] for one in supervisors}
    children = [
        child for one in supervisors for child in one["children"] if child["kind"] == "worker" and not one["expired"]
    ]
    busy = sum(child["state"] in {"computing", "waiting", "leaving"} and bool(child["job_kind"]) for child in children)
    return {
        "supervisors": supervisors,
        "there": sum(not one["expired"] for one in supervisors),
        "hosts": len({one["host"] for one in supervisors if not one["expired"]}),
        "workers": len(children),
        "busy": busy,
        "remote": sum(one["connected"] for one in sessions),
        "tasks": sum(one["tasks"] for one in sessions),
        "orphans": [one for one in sessions if one["via"] not in known],
        "rss": sum(child["rss"] or 0 for one in supervisors for child in one["children"]) or None,
        "cpu": sum(child["cpu"] or 0.0 for one in supervisors for child in one["children"]),
    }


async def show(request: Request) -> Response:
    """Show all supervisors and their processes."""
    return page(request, "fleet.html", **await ask(database(request)))


@action
async def order(request: Request, form: Form) -> Done:
    """Send a fleet command to a supervisor, and wait up to 3 s for its answer."""
    name, number = form.get("order", ""), form.get("supervisor", "")
    if name not in ORDERS or not (number.isascii() and number.isdigit()) or len(number) > 18:
        return Done("That is not a fleet command to a supervisor of this dashboard.", to=None, well=False)
    db = database(request)
    wanted = {"supervisor": int(number), "name": name, "arguments": "{}", "actor": viewer_of(request).actor,
              "reason": form.get("reason", "").replace("\0", "")[:LONGEST] or None}  # fmt: skip
    [given] = await db.act("control/send_fleet_command", wanted)
    until = time.monotonic() + PATIENCE
    row = await db.row("control/show_fleet_command", {"order": given["id"]})
    while row is not None and row["done_at"] is None and time.monotonic() < until:
        await asyncio.sleep(GLANCE)
        row = await db.row("control/show_fleet_command", {"order": given["id"]})
    if row is None or row["done_at"] is None:
        [taken_back] = await db.act("control/withdraw_fleet_command", {"order": given["id"]})
        if taken_back["withdrawn"]:
            return Done(
                f"Supervisor {number} did not answer within {duration(PATIENCE)}: "
                "the fleet command is withdrawn and will not be executed.",
                well=False,
            )
        return Done(
            f"Supervisor {number} has taken the fleet command and not answered yet: reload the page in some seconds.",
            well=False,
        )
    if row["error"]:
        return Done(f"Supervisor {number} rejects the fleet command: {row['error']}.", well=False)
    answer = document(row["answer"])
    if problem := text(answer.get("problem")):
        return Done(f"Supervisor {number} reloads its code, but {problem}", well=False)
    wants = number_of(answer.get("workers"))
    more = ""
    if wants is not None and name in {"add", "remove"}:
        more = f"; {count(int(wants), 'worker is', 'workers are')} wanted now"
    return Done(f"Supervisor {number} {ORDERS[name]}{more}.")


async def _request_reports(db: Database, rows: list[Row]) -> None:
    asked = [row["id"] for row in rows if not row["expired"] and _is_ending(document(row["facts"]), row["facts_age"])]
    if asked:
        try:
            await db.act("dashboard/request_reports", {"supervisors": asked, "seconds": WATCH})
        except psycopg.Error:
            pass  # a read-only role, or a supervisor that has exited meanwhile: the last report is shown


def _is_ending(report: Mapping[str, Any], age: float | None) -> bool:
    return age is None or (number_of(report.get("watched")) or 0.0) - age < RENEW


# -- reports, checked before they are shown


def supervisor(row: Row, sessions: list[Row]) -> dict[str, Any]:
    """Return one supervisor as the template needs it, with the remote workers that it serves."""
    report = document(row["facts"])
    age = row["facts_age"]
    children = [child(one) for one in listed(report.get("children"))]
    queues = report.get("queues")
    run_state = known(report.get("run_state"), RUN_STATES) or "serving"
    return {
        "id": row["id"],
        "host": row["host"],
        "pid": row["pid"],
        "version": row["version"],
        "up": row["up_for"],
        "expired": row["expired"],
        "lease_left": row["lease_left"],
        "beat_age": row["beat_age"],
        "state": "dead" if row["expired"] else run_state,
        "leaving": run_state != "serving",
        "reloading": report.get("reloading") is True,
        "known": bool(report),
        "age": age,
        "old": age is not None and age > OLD,
        "wanted": number_of(report.get("wanted")),
        "most": number_of(report.get("most")),
        "queues": [name for name in queues if isinstance(name, str)] if isinstance(queues, list) else [],
        "rss": number_of(report.get("rss")),
        "cpu": number_of(report.get("cpu")),
        "children": children,
        "sessions": sessions,
        "ends": [
            {
                "name": text(end.get("name")),
                "pid": number_of(end.get("pid")),
                "sentence": text(end.get("sentence")),
                "ago": (number_of(end.get("ago")) or 0.0) + (age or 0.0),
                "job": number_of(end.get("job")),
                "job_kind": text(end.get("job_kind")),
            }
            for end in reversed(listed(report.get("ends")))
        ],
    }


def child(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return one child process as the template needs it."""
    progress = report.get("progress") if isinstance(report.get("progress"), dict) else {}
    end = report.get("last_end") if isinstance(report.get("last_end"), dict) else {}
    assert isinstance(progress, dict)
    assert isinstance(end, dict)
    return {
        "name": text(report.get("name")) or "?",
        "kind": text(report.get("kind")),
        "state": known(report.get("state"), STATES) or "unknown",
        "waits_on": text(report.get("waits_on")),
        "queue": text(report.get("queue")),
        "pid": number_of(report.get("pid")),
        "up": number_of(report.get("up")),
        "cpu": number_of(report.get("cpu")),
        "cpu_seconds": number_of(report.get("cpu_seconds")),
        "rss": number_of(report.get("rss")),
        "jobs": number_of(report.get("jobs")),
        "held": number_of(report.get("held")) or 0,
        "restarts": number_of(report.get("restarts")) or 0,
        "why": text(end.get("sentence")) if text(end.get("cause")) not in QUIET else "",
        "job": number_of(report.get("job")),
        "record": number_of(report.get("record")),
        "job_kind": text(report.get("job_kind")),
        "together": number_of(report.get("together")),
        "attempt": number_of(report.get("attempt")),
        "most_attempts": number_of(report.get("most_attempts")),
        "elapsed": number_of(report.get("elapsed")),
        "left": number_of(report.get("left")),
        "fraction": number_of(progress.get("fraction")),
        "note": text(progress.get("note")),
    }


topics = (Topic("fleet", "fleet/_live.html", ask),)
routes = (
    Route("/fleet", show, name="fleet"),
    Route("/fleet/action", order, methods=["POST"], name="fleet_action"),
)
