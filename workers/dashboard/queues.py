"""Shows the queues: depth, age, running jobs, pauses and limits, and their form.

For each pause it shows the actor, the time and the reason. Depths are counted by index up to a
bound. A backlog of a million costs no more than one of some ten thousand, and is shown as "at
least".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from jobherd.handlers._policy.durations import seconds
from jobherd.handlers._policy.rates import check_burst, check_rate, check_refill
from jobherd.workers.dashboard import partitions
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.render import natural, page
from jobherd.workers.dashboard.request import viewer_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Reading
    from jobherd.workers.dashboard.forms import Form

QUEUES: Final = 200
"""Queues on one page."""
OTHERS: Final = "(all others)"
"""The name for all queues and tenants that are not shown by name; none can have this name."""
MOST: Final = 20_000
"""Jobs that are counted of one queue in one state."""
GATES: Final = 1000
TENANTS: Final = 20
PARTITIONS: Final = 20
SAMPLE: Final = 5000
"""Waiting jobs that are counted by tenant, and by partition."""
LONGEST: Final = 300
"""Characters of a field."""
SCOPES: Final = ("queue", "kind", "all")


async def ask(db: Database, _argument: str = "") -> dict[str, Any]:
    """Return the context of the page."""
    async with db.reading() as reading:
        return await _read(reading)


async def _read(db: Reading) -> dict[str, Any]:
    bounds: dict[str, Any] = {"most": MOST, "queues": QUEUES, "names": []}
    queues: dict[str, dict[str, Any]] = {}
    for row in await db.rows("observe/list_queue_names", bounds):
        _of(queues, row["queue"])
    for name in ("ready", "scheduled", "running"):
        for row in await db.rows(f"observe/measure_{name}", bounds):
            one = _of(queues, row["queue"] or OTHERS)
            one[name], one[f"{name}_capped"], one[f"{name}_oldest"] = row["jobs"], row["capped"], row["oldest"]
    gates = await db.rows("observe/list_limits", {"most": GATES})
    others = []
    for gate in gates:
        if gate["scope"] == "queue" and len(queues) <= 2 * QUEUES:
            _of(queues, gate["name"])["gate"] = gate
        else:
            others.append(gate)
    tenants: dict[str, dict[str, Any]] = {}
    for row in await db.rows("observe/measure_tenants", {"most": SAMPLE, "tenants": TENANTS}):
        one = tenants.setdefault(row["tenant"] or OTHERS, dict.fromkeys(("ready", "scheduled", "running"), 0))
        one[row["state"]] += row["jobs"]
    divided = any(gate["weights"] is not None or gate["each_running"] or gate["each_rate"] for gate in gates)
    busy = {"most": SAMPLE, "partitions": PARTITIONS}
    return {
        "queues": [queues[name] for name in sorted(queues, key=natural)],
        "others": others,
        "everything": next((gate for gate in others if gate["scope"] == "all" and gate["paused_at"]), None),
        "tenants": sorted(tenants.items(), key=lambda item: -sum(item[1].values())),
        "partitions": await db.rows("dashboard/list_busy_partitions", busy) if divided else [],
        "sample": SAMPLE,
    }


async def show(request: Request) -> Response:
    """Show the queues with their limits and pauses. `?queue=mail` or `?kind=mail:receipt` fills in the form."""
    given = {scope: request.query_params.get(scope, "")[:100] for scope in ("queue", "kind")}
    scope = "kind" if given["kind"] else "queue"
    return page(
        request,
        "queues.html",
        **await ask(database(request)),
        scope=scope,
        name=given[scope],
    )


@action
async def change(request: Request, form: Form) -> Done:
    """Pause, resume or limit a queue, a kind or everything."""
    scope, name, what = (_field(form, field) for field in ("scope", "name", "do"))
    reason = _field(form, "reason") or None
    if scope not in SCOPES:
        return Done("Choose a queue, a kind or everything.", well=False)
    if scope != "all" and not name:
        return Done(f"Choose a {scope}.", well=False)
    gate = {
        "queue": "*" if scope == "all" else name if scope == "queue" else None,
        "kind": name if scope == "kind" else None,
    }
    called = "Everything" if scope == "all" else f"{scope.capitalize()} {name}"
    by = {"actor": viewer_of(request).actor}
    db = database(request)
    match what:
        case "pause":
            try:
                delay = seconds(span, field="the time") if (span := _field(form, "for")) else None
            except (TypeError, ValueError) as problem:
                return Done(f"{problem}.", well=False)
            [row] = await db.act(
                "control/pause_claims", {**gate, **by, "reason": reason, "resume_at": None, "delay": delay}
            )
            again = "" if row["changed"] else ", as it was before; the reason and the time are the new ones"
            return Done(f"{called} is paused{again}.")
        case "resume":
            [row] = await db.act("control/resume_claims", {**gate, **by, "reason": reason})
            return Done(f"{called} is resumed." if row["changed"] else f"{called} was not paused.")
        case "limit" | "unlimit":
            limit = _field(form, "max_running")
            if what == "limit" and not (limit.isascii() and limit.isdigit() and len(limit) < 10 and int(limit)):
                return Done("A concurrency limit is a number from 1. To run nothing, pause it.", well=False)
            most = int(limit) if what == "limit" else None
            [row] = await db.act("control/set_limit", {**gate, **by, "max_running": most})
            was = "there was no limit before" if row["before"] is None else f"it was {row['before']}"
            return Done(
                f"{called} has no concurrency limit any more; {was}."
                if most is None
                else f"{called} runs at most {most} at a time; {was}."
            )
        case "rate" | "unrate":
            return await _set_rate(db, {**gate, **by}, form if what == "rate" else {}, called)
        case _ if what in partitions.ACTIONS:
            if scope != "queue":
                return Done("Only a queue has partitions: choose a queue.", well=False)
            fields = ("weights", "each", "strict", "each_rate", "each_burst")
            return await partitions.divide(
                db, what, name, by["actor"], {field: _field(form, field) for field in fields}
            )
    return Done("Choose an action: pause, resume, or set a limit or turns.", well=False)


async def _set_rate(db: Database, gate: dict[str, Any], form: Form | dict[str, str], called: str) -> Done:
    """Set a rate limit, or remove it if the form has none."""
    rate = burst = None
    if form:
        rate, given = _field(form, "rate"), _field(form, "burst")
        try:
            burst = (
                check_burst(int(given) if given.isascii() and given.isdigit() else given, field="the burst")
                if given
                else None
            )
            check_refill(check_rate(rate, field="the rate"), burst)
        except ValueError as problem:
            return Done(f"{problem}.", well=False)
    [row] = await db.act("control/set_rate", {**gate, "rate": rate, "burst": burst})
    was = "there was no rate limit before" if row["before"] is None else f"it was {row['before']}"
    return Done(
        f"{called} has no rate limit any more; {was}." if rate is None else f"{called} starts at most {rate}; {was}."
    )


def _field(form: Form | dict[str, str], name: str) -> str:
    return form.get(name, "").replace("\0", "").strip()[:LONGEST]


def _of(queues: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in queues:
        queues[name] = {"name": name, "gate": None}
        for state in ("ready", "scheduled", "running"):
            queues[name] |= {state: 0, f"{state}_capped": False, f"{state}_oldest": None}
    return queues[name]


topics = (Topic("queues", "queues/_live.html", ask, every=2.0),)
routes = (
    Route("/queues", show, name="queues"),
    Route("/queues/action", change, methods=["POST"], name="queues_action"),
)
