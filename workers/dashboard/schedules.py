"""Shows the schedules of periodic jobs: when they run, what became of their instants, and the actions.

The list costs one statement and calculates no instant: `next_at` is in the row. Only the page of one
schedule calculates the next ones. Must not enqueue a job: "Run now" asks a maintenance process.
"""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.handlers._policy.durations import positive
from jobherd.handlers._policy.timing import Timing
from jobherd.handlers._policy.timing_words import words_of
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.documents import document
from jobherd.workers.dashboard.json_values import document as object_of
from jobherd.workers.dashboard.live_updates import FINAL, Topic
from jobherd.workers.dashboard.redaction import redact
from jobherd.workers.dashboard.render import duration, page
from jobherd.workers.dashboard.request import root_of, viewer_of
from jobherd.workers.inspect.phrases import moment_or_none

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form

MOST: Final = 300
"""Schedules that are listed."""
TICKS: Final = 20
"""Instants of a schedule that are listed, past ones."""
UPCOMING: Final = 10
"""Instants of a schedule that are listed, coming ones."""
LATE: Final = 60.0
"""Seconds after which a schedule is shown as late: the misfire policy decides from then on."""
LONGEST: Final = 300
"""Characters of a field of the form."""


async def ask(db: Database, _argument: str = "") -> dict[str, Any]:
    """Return the context of the list."""
    rows = await db.rows("dashboard/list_schedules", {"name": None, "most": MOST + 1})
    return {"schedules": [described(row) for row in rows[:MOST]], "more": len(rows) > MOST}


async def ask_one(db: Database, name: str) -> dict[str, Any]:
    """Return the context of the live part of one schedule's page; `one` is None if it does not exist."""
    row = await db.row("dashboard/list_schedules", {"name": name, "most": 1})
    if row is None:
        return {"name": name, "one": None, FINAL: True}
    instants, problem = upcoming(row)
    ticks = await db.rows("dashboard/list_ticks", {"name": name, "most": TICKS})
    return {"name": name, "one": described(row), "instants": instants, "problem": problem, "ticks": ticks}


def described(row: Row) -> Row:
    """Add to the row of a schedule its time in words and its state."""
    try:
        row["words"] = f"every {duration(row['every'])}" if row["cron"] is None else words_of(row["cron"])
    except ValueError:
        row["words"] = ""  # the error of the row says why
    late = row["late"] is not None and row["late"] > LATE
    failing = row["paused_at"] and row["paused_by"] == "maintenance"
    conditions = (
        ("error", row["error"]), ("retired", row["retired_at"]), ("failing", failing), ("paused", row["paused_at"]),
        ("late", late),
    )  # fmt: skip
    row["condition"] = next((word for word, holds in conditions if holds), "active")
    row["held_at"], row["backfilled_to"] = moment_or_none(row["held_at"]), moment_or_none(row["backfilled_to"])
    return row


def upcoming(row: Row) -> tuple[list[tuple[datetime, str]], str]:
    """Return the next instants, each also as the clock of the schedule's zone shows it; or a problem."""
    options = object_of(row["options"])
    limits = [moment_or_none(options.get(name)) for name in ("starts_at", "ends_at")]
    timing = Timing(row["cron"], row["every"], row["tz"], *limits)
    try:
        # What is planned counts, also if this host has other time zone data.
        planned = [] if row["next_at"] is None or row["next_at"] < row["asked_at"] else [row["next_at"]]
        found = islice(chain(planned, timing.after(planned[0] if planned else row["asked_at"])), UPCOMING)
        return [(at, f"{at.astimezone(timing.zone):%a %Y-%m-%d %H:%M:%S %Z}") for at in found], ""
    except (ValueError, OverflowError) as problem:
        return [], str(problem)


async def show(request: Request) -> Response:
    """Show all schedules."""
    return page(request, "schedules.html", **await ask(database(request)))


async def show_one(request: Request) -> Response:
    """Show one schedule. 404 if it does not exist."""
    name, db = request.path_params["schedule"], database(request)
    context = {"one": None} if "\0" in name else await ask_one(db, name)
    one = context["one"]
    if one is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    paths = (await request.app.state.redactions.read(db)).get(one["kind"], ())
    return page(request, "schedule.html", payload=document("payload", redact(one["payload"], paths)), **context)


@action
async def change(request: Request, form: Form) -> Done:
    """Run, pause or resume a schedule."""
    name, what = form.get("name", "").strip()[:LONGEST], form.get("do", "")
    given = {
        "name": name,
        "actor": viewer_of(request).actor,
        "reason": form.get("reason", "").strip()[:LONGEST] or None,
    }
    db = database(request)
    match what:
        case "run":
            await db.act("schedule/run_schedule", given)
            return Done(
                f"Schedule {name} runs once now. Its job is listed here when a maintenance process has enqueued it."
            )
        case "pause":
            try:
                delay = positive(span, field="the time") if (span := form.get("for", "").strip()) else None
            except (TypeError, ValueError) as problem:
                return Done(f"{problem}.", well=False)
            await db.act("schedule/pause_schedule", {**given, "until": None, "delay": delay})
            return Done(f"Schedule {name} is paused.")
        case "resume":
            [row] = await db.act("schedule/resume_schedule", given)
            return Done(f"Schedule {name} is resumed." if row["changed"] else f"Schedule {name} was not paused.")
        case "backfill":
            return await _backfill(db, given, form)
        case "reset":
            await db.act("schedule/reset_schedule", given)
            return Done(f"Schedule {name} is as its handler declares it.")
        case "delete":
            [row] = await db.act("schedule/unschedule", given)
            there = row["changed"]
            to = f"{root_of(request)}{request.app.url_path_for('schedules')}"
            return Done(f"Schedule {name} is deleted." if there else f"Schedule {name} does not exist.", to, well=there)
    return Done("Choose an action: run, pause, resume, backfill, reset or delete.", well=False)


async def _backfill(db: Database, given: dict[str, Any], form: Form) -> Done:
    """Run past instants that have no job. The browser sends times without a zone: they are in UTC."""
    first, last = (form.get(field, "").strip()[:LONGEST] for field in ("from", "to"))
    parallel = form.get("parallel", "").strip()
    if not (parallel.isascii() and parallel.isdigit() and len(parallel) < 5):
        return Done("The most jobs at a time must be a whole number from 1 to 1000.", well=False)
    try:
        times = {"from_at": _utc(first), "to_at": _utc(last) if last else None}
    except ValueError:
        return Done("A time must be written like 2030-01-31T08:00.", well=False)
    await db.act("schedule/backfill_schedule", {**given, **times, "parallel": int(parallel)})
    return Done(f"Schedule {given['name']} runs its instants that have no job, at most {parallel} at a time.")


def _utc(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


topics = (
    Topic("schedules", "schedules/_live.html", ask, every=5.0),
    Topic("schedule", "schedules/_one.html", ask_one, every=3.0),
)
routes = (
    Route("/schedules", show, name="schedules"),
    Route("/schedules/action", change, methods=["POST"], name="schedules_action"),
    Route("/schedules/{schedule}", show_one, name="schedule"),
)
