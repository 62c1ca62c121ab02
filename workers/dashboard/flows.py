"""Shows flows: the list, and one as a graph in layers, with the states of its nodes. Cancels, seals and retries them.

The graph is drawn by the server: a layer holds the nodes whose upstream nodes are all in earlier
layers. A node with many jobs is one box with a bar and the number of jobs in each state. The nodes
that decided how long the flow took are marked.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import psycopg
from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.documents import parsed
from jobherd.workers.dashboard.live_updates import FINAL, Topic
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import viewer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form

MOST: Final = 200
"""Flows that are listed."""
STATES: Final = ("open", "completed", "failed", "cancelled")
LARGEST_ID: Final = 2**63 - 1
LONGEST: Final = 300
"""Characters of a reason."""


async def ask(db: Database, argument: str = "") -> dict[str, Any]:
    """Return the context of the list. argument: a state or "", optionally followed by a space and a name."""
    state, _, name = argument.replace("\0", "").partition(" ")
    wanted = {"state": state or None, "name": name or None, "before": LARGEST_ID, "limit": MOST + 1}
    rows = await db.rows("observe/list_flows", wanted)
    return {"flows": rows[:MOST], "more": len(rows) > MOST, "state": state, "name": name}


async def ask_one(db: Database, number: str) -> dict[str, Any]:
    """Return the context of the live part of one flow's page; `one` is None if it does not exist."""
    wanted = {"id": int(number)}
    row = await db.row("observe/show_flow", wanted)
    if row is None:
        return {"id": number, "one": None, FINAL: True}
    nodes = [
        {**node, "waits_for": parsed(node["waits_for"]) or [], "states": parsed(node["states"]) or {}}
        for node in await db.rows("observe/list_flow_nodes", wanted)
    ]
    members = [node for node in nodes if not node["runs_on"]]
    return {
        "id": number,
        "one": row,
        "layers": layers(members),
        "critical": critical(members),
        "failed": [node for node in nodes if is_failed(node)],
        "callbacks": [node for node in nodes if node["runs_on"]],
    }


def layers(nodes: Sequence[Row]) -> list[list[Row]]:
    """Return the nodes in layers: each node is behind all that it waits for.

    >>> [[node["node"] for node in layer] for layer in layers([
    ...     {"node": "a", "waits_for": []}, {"node": "b", "waits_for": ["a", 7]}, {"node": "c", "waits_for": []}])]
    [['a', 'c'], ['b']]
    """
    depth: dict[str, int] = {}
    found: list[list[Row]] = []
    for node in nodes:  # each names only nodes before it
        place = 1 + max((depth.get(name, -1) for name in node["waits_for"] if isinstance(name, str)), default=-1)
        depth[node["node"]] = place
        found += [[] for _ in range(place + 1 - len(found))]
        found[place].append(node)
    return found


def is_failed(node: Row) -> bool:
    """Return whether a job of the node has failed or expired."""
    return any(node.get("states", {}).get(state) for state in ("failed", "expired"))


def critical(nodes: Sequence[Row]) -> set[str]:
    """Return the names of the nodes on the critical path.

    They are the node that ended last, of those that failed if there are any, and before each node the last one that it
    waited for. A shorter node elsewhere would not have let the flow end earlier. Empty while only one node has ended.

    >>> sorted(critical([
    ...     {"node": "a", "waits_for": [], "ended_at": 5.0}, {"node": "b", "waits_for": [], "ended_at": 7.0},
    ...     {"node": "c", "waits_for": ["a", "b", 3], "ended_at": 9.0}]))
    ['b', 'c']
    """
    ended = {node["node"]: node for node in nodes if node["ended_at"] is not None}
    path: set[str] = set()
    names = [name for name, node in ended.items() if is_failed(node)] or list(ended)
    while names:
        last = max(names, key=lambda name: (ended[name]["ended_at"], name))
        path.add(last)
        names = [name for name in ended[last]["waits_for"] if name in ended and name not in path]
    return path if len(path) > 1 else set()


async def show(request: Request) -> Response:
    """Show the flows: all, or those of a state or a name."""
    state, name = request.query_params.get("state", ""), request.query_params.get("name", "")[:200]
    argument = f"{state if state in STATES else ''} {name}".rstrip()
    context = await ask(database(request), argument)
    return page(request, "flows.html", **context, argument=argument, states=("", *STATES))


async def show_one(request: Request) -> Response:
    """Show one flow. 404 if it does not exist."""
    number = request.path_params["id"]
    context = {"one": None} if number > LARGEST_ID else await ask_one(database(request), str(number))
    if context["one"] is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return page(request, "flow.html", **context)


@action
async def change(request: Request, form: Form) -> Done:
    """Cancel a flow, seal it, or run it again from where it failed."""
    number, what = form.get("id", ""), form.get("do", "")
    if not (number.isascii() and number.isdigit() and int(number) <= LARGEST_ID) or what not in {
        "cancel",
        "retry",
        "seal",
    }:
        return Done("Choose a flow, and an action: cancel, retry or seal.", well=False)
    reason = form.get("reason", "").strip()[:LONGEST] or None
    given: dict[str, object] = {"id": int(number)}
    given |= {"actor": viewer_of(request).actor, "reason": reason} if what != "seal" else {}
    node = form.get("from", "") or None
    given |= {"node": node} if what == "retry" else {}
    try:
        [row] = await database(request).act(f"control/{what}_flow", given)
    except psycopg.errors.InvalidParameterValue as problem:
        said = (problem.diag.message_primary or "").removeprefix("jobherd.retry_flow: ")
        return Done(f"{said}. {problem.diag.message_hint or ''}", well=False)
    answer = row["answer"]
    if answer is None:
        return Done(f"Flow {number} does not exist.", well=False)
    if what == "cancel":
        done = answer == "cancelling"
        return Done(f"Flow {number} is being cancelled." if done else f"Flow {number} is {answer} already.", well=done)
    if what == "seal":
        done = answer == "sealed"
        return Done(f"Flow {number} is sealed." if done else f"Flow {number} is {answer} already.", well=done)
    if node is not None:
        if answer == 0:
            return Done(f"Flow {number} is open: cancel it first, or wait for its end.", well=False)
        return Done(f"Flow {number} runs again from node {node}: {answer:,} jobs.")
    if answer == 0:
        return Done(f"Flow {number} has neither failed nor been cancelled.", well=False)
    return Done(f"Flow {number} runs again from where it failed: {answer:,} jobs.")


topics = (
    Topic("flows", "flows/_live.html", ask, every=3.0),
    Topic("flow", "flows/_one.html", ask_one, every=2.0),
)
routes = (
    Route("/flows", show, name="flows"),
    Route("/flows/action", change, methods=["POST"], name="flows_action"),
    Route("/flows/{id:int}", show_one, name="flow"),
)
