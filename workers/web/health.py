"""Judges whether the supervisor is alive, has started, and accepts work. Does nothing else.

The three are separate. Restarting a supervisor because its database is down, or because it drains,
would kill the jobs that still run. So `/livez` checks only the supervisor's loop.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jobherd.workers.inspect.phrases import duration
from jobherd.workers.web.http_message import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.web.http_message import Request
    from jobherd.workers.web.server import Route
    from jobherd.workers.web.status_report import StatusReader, StatusReport

LOOP_LATE: Final = 5.0
"""Seconds without a turn after which the supervisor's loop counts as dead."""

INDEX: Final = """\
jobherd

/metrics   what was counted: Prometheus text, or OpenMetrics if requested
/livez     the supervisor's loop runs
/readyz    the supervisor can claim jobs
/startupz  a child process has been ready

{why_no_page}
"""


def why_not_live(report: StatusReport) -> list[str]:
    """Return why the supervisor should be restarted; empty if it should not."""
    if report.loop_age > LOOP_LATE:
        return [
            "the supervisor's loop has not run yet"
            if not report.loop_at
            else f"the supervisor's loop has not run for {duration(report.loop_age)}"
        ]
    return []


def why_not_started(report: StatusReport) -> list[str]:
    """Return why the supervisor does not count as started; empty if it does."""
    return [] if report.ready_ever else ["no child process has been ready yet"]


def why_not_ready(report: StatusReport) -> list[str]:
    """Return why this supervisor accepts no new work; empty if it does."""
    reasons = why_not_live(report)
    if report.draining:
        reasons.append("the supervisor is draining")
    if not report.listening and not report.polling:
        reasons.append("the supervisor receives no notifications: its LISTEN connection is down")
    if not report.lease_until:
        reasons.append("the supervisor has no lease yet")
    elif report.lease_left <= 0:
        reasons.append(f"the lease expired {duration(abs(report.lease_left))} ago")
    if not any(child.kind == "worker" and child.state == "ready" for child in report.children):
        reasons.append("no worker is ready")
    return reasons


def pages(reader: StatusReader, *, why_no_page: str = "") -> dict[str, Route]:
    """Return the health routes by path; also the index at `/` if `why_no_page` is given.

    Args:
        reader: reads the status report of the supervisor.
        why_no_page: why there is no dashboard; empty if there is one.
    """

    def page(ask: Callable[[StatusReport], list[str]]) -> Route:
        async def answer(_: Request) -> Answer:
            reasons = ask(reader.read())
            body = json.dumps({"ok": not reasons, "reasons": reasons}) + "\n"
            return Answer(503 if reasons else 200, body.encode(), "application/json")

        return answer

    async def index(_: Request) -> Answer:
        return Answer(200, INDEX.format(why_no_page=why_no_page).encode())

    health = {"/livez": page(why_not_live), "/readyz": page(why_not_ready), "/startupz": page(why_not_started)}
    return {"/": index} | health if why_no_page else health
