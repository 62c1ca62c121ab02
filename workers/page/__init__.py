"""The page: what an operator looks at first. An ASGI application (Starlette, Jinja2: the extra `web`) that can be mounted in other sites.

    from workers.page import application
    site.mount("/jobs", application("postgresql://...", authorize=who_may))

`application.py` puts it together. `guard.py` says who may do what, and stands before everything; `access.py` holds its keys and cookies;
`database.py` is the only way to PostgreSQL, `live.py` what changes while it is looked at, `render.py` how things are written, `redaction.py`
what is never written. Beside them is one module for each page: its `routes`, and its `topics` if it is live. The templates are in
`templates/`, the style sheet, the scripts and what is not ours among them (with its licence) in `static/`.

Laws of a page: it reads with statements of `sql/queries/page/` that never scan the hot table; it changes something only in an endpoint
made by `guard.action`; it says everything in server-rendered HTML, so that only live updates need a script; it makes no HTML by hand. It
imports nothing of `workers/web/`, which serves it, and nothing that runs jobs.
"""

from __future__ import annotations

from workers.page.access import Role
from workers.page.application import application

__all__ = ["Role", "application"]
