"""Chooses the jobs of a bulk action, shows what will happen to how many, and begins it.

`job_search` finds the jobs of a filter, and `bulk` runs the action.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from jobherd.handlers._policy import durations
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.workers.dashboard import bulk
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.filters import LIVE, Wanted
from jobherd.workers.dashboard.job_search import search_jobs
from jobherd.workers.dashboard.redaction import paths_of
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import Refused, root_of, viewer_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form
    from jobherd.workers.dashboard.job_search import Found

COUNTED: Final = 10_000
"""Jobs that are counted before a bulk action; above it the page says that there are more."""
REASON_MOST: Final = 500
FEW: Final = 5
"""Jobs that are named on the confirmation page."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A bulk action."""

    word: str
    """The text of its button."""
    states: tuple[str, ...]
    """The states that it applies to."""
    will: str
    """What will happen to the jobs."""
    danger: bool = False


BULK_ACTIONS: Final = {
    "retry": BulkAction(
        "Retry",
        ("retrying", "scheduled", *FINAL_STATES),
        "will run again now: waiting jobs at once, finished jobs from the start",
    ),
    "cancel": BulkAction(
        "Cancel", LIVE, "will be cancelled: waiting jobs at once; running jobs are interrupted", danger=True
    ),
    "delete": BulkAction(
        "Delete", FINAL_STATES, "will be deleted permanently, with their attempts and logs", danger=True
    ),
    "reprioritize": BulkAction(
        "Change priority", ("ready", "retrying", "scheduled", "blocked"), "will be given the priority that you set"
    ),
    "reschedule": BulkAction(
        "Change time", ("ready", "retrying", "scheduled", "blocked"), "will be given the time that you set"
    ),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The jobs of a bulk action."""

    action: str
    document: dict[str, object]
    """The selection, as stored in the row."""
    rows: list[Row]
    """The jobs that exist now, the first `COUNTED` of them."""
    refused: Counter[str]
    """How many of the selected jobs the action does not apply to, by state."""
    at_least: bool

    @property
    def by_state(self) -> list[tuple[str, int]]:
        """Number of jobs by state."""
        return Counter(row["state"] for row in self.rows).most_common()

    @property
    def by_flow(self) -> list[tuple[int, int]]:
        """Number of jobs by the flow that ended without them. Empty for the jobs of a filter."""
        return Counter(row["flow"] for row in self.rows if row.get("flow")).most_common()


class _NothingChosen(Exception):  # noqa: N818 - says what happened
    """The form names no job."""


async def _choose(at: Database, given: Form) -> Choice:
    """Return the selection of a form. Raises Refused, or _NothingChosen."""
    name = given.get("action", "")
    if name not in BULK_ACTIONS:
        raise Refused(HTTPStatus.BAD_REQUEST, f"Choose what is to be done: {', '.join(BULK_ACTIONS)}.")
    chosen = BULK_ACTIONS[name]
    states = chosen.states
    if given.get("all"):
        wanted, problems = Wanted.read(given)
        if problems:
            raise Refused(HTTPStatus.BAD_REQUEST, " ".join(problems.values()))
        among = wanted.among(states)
        if among is None:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"“{chosen.word}” applies to jobs that are {' or '.join(states)}: the filter has none of these states.",
            )
        if among.is_relative:
            among = among.fixed((await at.rows("observe/show_time"))[0]["now"])
        found: Found = await search_jobs(at, among, limit=COUNTED, hidden=await paths_of(at))
        return Choice(name, {"filter": among.document()}, found.rows, Counter(), at_least=found.onward is not None)
    ids = sorted(
        {int(text) for text in given.getlist("id") if text.isascii() and text.isdigit() and len(text) < 19},
        reverse=True,
    )
    if not ids:
        raise _NothingChosen
    rows = await at.rows("dashboard/list_chosen", {"ids": ids[:COUNTED]})
    fit = [row for row in rows if row["state"] in states]
    refused = Counter(row["state"] for row in rows if row["state"] not in states)
    if gone := len(ids) - len(rows):
        refused["no longer there"] = gone
    return Choice(name, {"ids": [row["id"] for row in fit]}, fit, refused, at_least=False)


@action
async def confirm(request: Request, given: Form) -> Response | Done:
    """Show what will happen, and to how many jobs, before it does.

    Nothing is changed here. It is a POST because a thousand ids do not fit into an address.
    """
    try:
        choice = await _choose(database(request), given)
    except _NothingChosen:
        return Done("Nothing was done: tick the jobs first, or “all that match”.", well=False)
    fields = [
        (name, value)
        for name, value in given.multi_items()
        if name in {"id", "all", "state", "kind", "queue", "tenant", "code", "since", "until", "tz", "q"}
    ]
    back = f"{root_of(request)}{request.app.url_path_for('jobs')}"
    query = Wanted.read(given)[0].query()
    return page(
        request, "jobs/confirm.html", choice=choice, action=BULK_ACTIONS[choice.action], fields=fields,
        few=choice.rows[:FEW], back=f"{back}?{query}" if query else back,
    )  # fmt: skip


@action
async def begin(request: Request, form: Form) -> Done:
    """Begin the bulk action."""
    at = database(request)
    try:
        choice = await _choose(at, form)
    except _NothingChosen:
        return Done("Nothing was done: no job was chosen.", well=False)
    if not choice.rows:
        return Done("Nothing was done: none of the jobs is left.", form.get("next", "") or None, well=False)
    value = await _value(at, choice.action, form.get("value", "").strip())
    [added] = await at.act(
        "dashboard/add_bulk",
        {
            "action": choice.action,
            "value": value,
            "wanted": json.dumps(choice.document),
            "actor": viewer_of(request).actor,
            "reason": form.get("reason", "").replace("\0", "")[:REASON_MOST] or None,
            "expected": len(choice.rows),
            "at_least": choice.at_least,
            "reached": choice.rows[0]["id"] + 1,
        },
    )
    bulk.runner_of(request).take(added["id"])
    return Done(
        "It has begun. You may leave this page.",
        f"{root_of(request)}{request.app.url_path_for('bulk', id=added['id'])}",
    )


async def _value(at: Database, name: str, text: str) -> str | None:
    """Return the priority or the time of a form. Raises Refused."""
    if name == "reprioritize":
        try:
            if -32768 <= int(text) <= 32767:
                return str(int(text))
        except ValueError:
            pass
        raise Refused(
            HTTPStatus.BAD_REQUEST, "The priority is a whole number from -32768 to 32767: the lower, the sooner."
        )
    if name == "reschedule":
        now: datetime = (await at.rows("observe/show_time"))[0]["now"]
        try:
            return due(text, now).isoformat()
        except (ValueError, TypeError, OverflowError):
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                "The time is “now”, a duration (“10m”, “2h”), or a timestamp (“2026-01-31 08:00”, UTC).",
            ) from None
    return None


def due(text: str, now: datetime) -> datetime:
    """Return the timestamp of a user's input. Raises ValueError, TypeError or OverflowError.

    >>> due("10m", datetime(2026, 1, 31, 8, tzinfo=UTC)).isoformat()
    '2026-01-31T08:10:00+00:00'
    """
    if text == "now":
        return now
    try:
        return now + timedelta(seconds=durations.seconds(text.removeprefix("+"), field="time"))
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


routes = (
    Route("/jobs/confirm", confirm, methods=["POST"], name="jobs_confirm"),
    Route("/jobs/action", begin, methods=["POST"], name="jobs_action"),
    *bulk.routes,
)
