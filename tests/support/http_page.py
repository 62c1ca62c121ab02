"""Makes `docs/reference/http-endpoints.md` from the routes of the web process and of the dashboard.

python -m tests.support.http_page
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from jobherd.workers.dashboard import databases
from jobherd.workers.dashboard.application import PAGES
from tests.support.checkout import ROOT

if TYPE_CHECKING:
    from starlette.routing import Route

PAGE = ROOT / "docs" / "reference" / "http-endpoints.md"
HEAD = """# HTTP endpoints

<!-- Made by `python -m tests.support.http_page` from the code. Do not edit. -->

What the web process of a supervisor serves at the setting [`http`](settings.md#http), by default `127.0.0.1:8790`. The paths of the dashboard
begin with [`dashboard_path`](settings.md#dashboard_path), if that is set. For programs that enqueue or query jobs, use
[SQL](sql.md), [Python](python-api.rst) or [the gateway](gateway-protocol.md): the dashboard is not an interface for programs.

## Health and metrics

Without a token. The health paths return 200, or 503 with the reasons: `{"ok": false, "reasons": ["no worker is ready"]}`. What each means for
probes: [Monitor](../how-to/operate/monitor.md#health-and-metrics).

| method | path | response |
|---|---|---|
"""
HEALTH: Final = {
    "/livez": "JSON: whether the supervisor's loop runs",
    "/readyz": "JSON: whether the supervisor can claim jobs",
    "/startupz": "JSON: whether a worker of this run has been ready once",
    "/metrics": "the [metrics](metrics.md), as Prometheus text or OpenMetrics",
    "/": "text: the list of these paths. Only if the dashboard is off",
}
DASHBOARD = """
## Dashboard

Requires the extra `web`. A view token may GET, an operate token may also POST: see [Access to the dashboard](../how-to/operate/dashboard-access.md).
The POST of a browser needs the token of the dashboard's form. A browser without a session is redirected to `/login`, a
program without a token gets 401, and a request without the permission 403. While the database is unreachable, the response is 503.

| method | path | what it does |
|---|---|---|
"""

DATABASES = """
## Several databases

With more than one, [`jobherd dashboard`](../how-to/operate/several-databases.md#the-dashboard) serves the paths above below `/db/NAME/`, one
NAME for each database. At its root it serves `/login`, `/logout`, `/sessions/end`, `/live` and `/static/...`, and these:

| method | path | what it does |
|---|---|---|
"""


def render() -> str:
    """Return the page for the code of this checkout."""
    health = [f"| GET | `{path}` | {meaning} |" for path, meaning in HEALTH.items()]
    pages = [row(route) for module in PAGES for route in module.routes]
    return (
        HEAD
        + "\n".join(health)
        + "\n"
        + DASHBOARD
        + "\n".join(pages)
        + "\n| GET | `/static/...` | Style sheets and scripts. |\n"
        + DATABASES
        + "\n".join(row(route) for route in databases.routes)
        + "\n"
    )


def row(route: Route) -> str:
    """Return a row of the table of the dashboard."""
    text = " ".join((route.endpoint.__doc__ or "").split("\n\n")[0].split())
    path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
    methods = ", ".join(sorted((route.methods or set()) - {"HEAD"}))
    return f"| {methods} | `{path}` | {text} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
