"""The dashboard: an ASGI application (Starlette, Jinja2: the extra `web`).

It can be mounted in other sites:

    from jobherd.workers.dashboard import application
    site.mount("/jobs", application("postgresql://...", authorize=who_may))

`application.py` assembles it, `databases.py` one of several databases, with `database_list.py`. `guard.py`
admits or rejects every request; `request.py` has what it found out. `query_cache.py` keeps answers for all viewers.
`access.py` has the roles, tokens and signatures, `cookies.py` the cookies,
`login_limits.py` the limits on wrong tokens. `actions.py` makes endpoints that change something,
`forms.py` reads their forms. `database.py` is the only access to PostgreSQL; `live_updates.py` sends
updates to open pages; `render.py` formats values; `redaction.py` removes what must never be shown.
Each page has its own module with `routes`, and `topics` if it is live. The templates are in
`templates/`. The style sheet and the scripts are in `static/`, including third-party files with
their license.

A page is a module like `queues.py`:

    # async ask(database, argument) returns the context of the fragment
    topics = (live_updates.Topic("queues", "queues/_live.html", ask),)

    async def show(request):
        return page(request, "queues.html", **await ask(database(request), ""))

    @action  # checks the role, the token, the origin and read-only before it runs
    async def act(request, form):
        given = {"id": form["id"], "actor": viewer_of(request).actor, "reason": form["reason"]}
        await database(request).act("control/cancel_job", given)
        return Done("The job is canceled.")

    routes = (
        Route("/queues", show, name="queues"),
        Route("/queues/action", act, methods=["POST"], name="queues-action"),
    )

Its template includes the fragment at its place, here without and with an argument:

    <div data-live="queues">{% include "queues/_live.html" %}</div>
    <div data-live="job:17">...

The script replaces the content of `data-live` part by part, so it keeps what the viewer has opened,
ticked, typed or focused; rows that come and go need an `id`.

Rules for a page: it reads with statements of `sql/queries/dashboard/` that never scan the hot table. It
changes data only in an endpoint made by `actions.action`. It shows everything in server-rendered
HTML, so that only live updates need a script. It builds no HTML outside templates. It must not
import from `workers/web/`, which serves it, or anything that runs jobs.
"""

from __future__ import annotations

from jobherd.workers.dashboard.access import Role
from jobherd.workers.dashboard.application import application

__all__ = ["Role", "application"]
