"""The page: what an operator looks at first. An ASGI application (Starlette, Jinja2: the extra `web`) that can be mounted in other sites.

    from jobherd.workers.page import application
    site.mount("/jobs", application("postgresql://...", authorize=who_may))

`application.py` puts it together. `guard.py` says who may do what, and stands before everything; `access.py` holds its keys and cookies;
`database.py` is the only way to PostgreSQL, `live.py` what changes while it is looked at, `render.py` how things are written, `redaction.py`
what is never written. Beside them is one module for each page: its `routes`, and its `topics` if it is live. The templates are in
`templates/`, the style sheet, the scripts and what is not ours among them (with its licence) in `static/`.

A page is a module like `queues.py`:

    topics = (live.Topic("queues", "queues/_live.html", ask),)       # async ask(database, argument) -> what the fragment knows

    async def show(request):
        return page(request, "queues.html", **await ask(database(request), ""))

    @action                                                         # role, token, origin and read-only are checked before it
    async def act(request, form):
        await database(request).act("page/pause_queue", {"queue": form["queue"], "actor": viewer_of(request).actor})
        return Done("The queue is paused.")

    routes = (Route("/queues", show, name="queues"), Route("/queues/action", act, methods=["POST"], name="queues-action"))

and its template includes the fragment where it is live: `<div data-live="queues">{% include "queues/_live.html" %}</div>`, with an argument
`data-live="job:17"`. What stands in `data-live` is replaced part by part, so what somebody has opened, ticked, typed or focused stays; rows
that come and go need an `id`.

Laws of a page: it reads with statements of `sql/queries/page/` that never scan the hot table; it changes something only in an endpoint
made by `guard.action`; it says everything in server-rendered HTML, so that only live updates need a script; it makes no HTML by hand. It
imports nothing of `workers/web/`, which serves it, and nothing that runs jobs.
"""

from __future__ import annotations

from jobherd.workers.page.access import Role
from jobherd.workers.page.application import application

__all__ = ["Role", "application"]
