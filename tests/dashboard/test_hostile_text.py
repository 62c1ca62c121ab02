"""Every stored text is hostile, and every page of the application shows it.

Pages must not execute the texts, and the texts must not break the layout.

The tests name no fields, so that none is forgotten: they drop the constraints on names, fill every
column of text or JSON in the schema, and open every path of the application.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
import uvicorn
from psycopg import sql as names

from jobherd.workers.dashboard import application
from tests.dashboard.support import LIMIT, W01
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

KEPT = {
    ("migrations", "area"), ("migrations", "name"), ("history", "state"), ("gates", "scope"), ("children", "kind"), ("orders", "name"),
    ("bulks", "action"),
}  # fmt: skip
"""Columns with a fixed set of values, which the code defines."""
LONG = "x" * 3000
"""A word that cannot be wrapped."""
CORPUS = (*W01, LONG, "line one\nline two\r\n\tthree", "\x1b[31mred\x1b[0m \x07\x08")
FACTS: dict[str, Any] = {
    "version": "1",
    "children": [{"slot": 0, "kind": "worker", "state": "idle", "pid": 1, "job": 1, "note": "x"}],
    "deaths": {"oom": 1},
}


def fill(dsn: str) -> list[int]:
    """Insert jobs in every state with every attribute, and put hostile text into every column. Return the jobs."""
    with Queue(dsn) as queue:
        for table, constraint in queue.run(
            """SELECT conrelid::regclass::text, conname FROM pg_constraint
                WHERE connamespace = 'jobherd'::regnamespace AND contype = 'c' AND coninhcount = 0 AND conname ~ 'is_a_name'"""
        ):
            queue.run(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")
        jobs = []
        for place, text in enumerate(CORPUS):
            child = queue.child()
            token = place + 1000
            for table in ("ready", "scheduled", "running", "history"):
                jobs.append(_put(queue, table, text, child.id, token, jobs[-1] if jobs else None))
            job = jobs[-1]
            document = json.dumps(
                {text: [text, {"name": text}], "sentence": text, "stack": text, "log_tail": text, "cause": text}
            )
            queue.run(
                """INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                                 ran_on, usage, post_mortem)
                   VALUES (%s, 1, 1, %s, now(), now(), current_date + 30, %s, %s, %s, %s, %s, %s)""",
                job, text, text, text, text, text, document, document,
            )  # fmt: skip
            queue.run(
                """INSERT INTO jobherd.logs (job, token, attempt, at, drop_on, output, entries) VALUES (%s, 1, 1, now(), current_date + 30, %s, %s)""",
                job, text, json.dumps([{"key": text, "out": text, "command": text, text: text}, text]),
            )  # fmt: skip
            queue.run(
                "INSERT INTO jobherd.gates (scope, name, paused_at, paused_by, reason, max_running, limited_at, limited_by) VALUES ('queue', %s, now(), %s, %s, 3, now(), %s)",
                text, text, text, text,
            )  # fmt: skip
            queue.run(
                "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) VALUES (%s, %s, 0, 5, 3, 7, 30)",
                text,
                text,
            )
            queue.run(
                """INSERT INTO jobherd.schedules (name, kind, every, tz, payload, options, edited_by, edited_at, paused_at, paused_by, pause_reason, error)
                   SELECT 's' || count(*), 'a:b', 60, %s, %s, %s, %s, now(), now(), %s, %s, %s FROM jobherd.schedules""",
                text, document, document, text, text, text, text,
            )  # fmt: skip
            queue.run("INSERT INTO jobherd.tenants (role, tenant) VALUES (current_user, %s)", text)
            if queue.run("SELECT to_regclass('jobherd.audit')")[0][0]:
                queue.run(
                    "SELECT jobherd.note_audit(%s, %s, %s::jsonb, %s)",
                    text,
                    text,
                    json.dumps({"job": jobs[-1], "queue": text, text: text}),
                    text,
                )
        _poison(queue)
        return jobs


def _put(queue: Queue, table: str, text: str, child: int, token: int, parent: int | None) -> int:
    document = json.dumps({text: text, "list": [text], "note": text, "fraction": 0.5})
    job = queue.run("SELECT nextval('jobherd.job_ids')")[0][0]
    extras = "jobherd.extras_of(%(text)s, %(text)s, convert_to(%(text)s, 'UTF8'), %(parent)s, %(text)s)"
    row = f"%(job)s, now(), now(), jsonb_build_object('code', %(text)s, 'message', %(text)s), 0::smallint, 1::smallint, %(text)s, %(text)s, %(document)s::text::json, {extras}"
    columns = "id, created_at, run_at, last_error, priority, attempts, queue, kind, payload, extras"
    statement = f"INSERT INTO jobherd.{table} ({columns}) SELECT {row}"
    if table == "running":
        statement = f"""WITH one AS (INSERT INTO jobherd.ready ({columns}) SELECT {row} RETURNING ready)
            INSERT INTO jobherd.running (child, token, queue, jobs) SELECT %(child)s, %(token)s, %(text)s, array_agg(one.ready) FROM one"""
    elif table == "history":
        statement = f"""INSERT INTO jobherd.history ({columns.replace(" last_error,", "")}, crashes, started_at, finished_at, drop_on, token, state, result, error_code,
                                                     error, traceback, ran_on, usage, post_mortem, progress)
            SELECT {row.replace("jsonb_build_object('code', %(text)s, 'message', %(text)s), ", "")}, 0, now(), now(), current_date + 30, 1, 'failed', %(document)s::text::json,
                   %(text)s, %(text)s, %(text)s, %(text)s, %(document)s::text::jsonb, %(document)s::text::jsonb, %(document)s::text::jsonb"""
    queue.connection.execute(
        statement.replace("%(text)s", "%(text)s::text"),
        {"job": job, "text": text, "document": document, "child": child, "token": token, "parent": parent},
    )
    if table == "running":
        queue.run("DELETE FROM jobherd.ready WHERE id = %s", job)
        queue.run("INSERT INTO jobherd.progress (job, token, progress) VALUES (%s, %s, %s)", job, token, document)
    return job


def _poison(queue: Queue) -> None:
    """Fill all other columns of text and JSON, with different strings in the rows of a table."""
    columns = queue.run(
        """SELECT c.relname, a.attname, a.atttypid::regtype::text
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relnamespace = 'jobherd'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attgenerated = '' AND a.atttypid::regtype::text IN ('text', 'jsonb', 'json')
              AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey))"""
    )
    given = [json.dumps(text) for text in CORPUS]
    for table, column, kind in columns:
        if (table, column) in KEPT:
            continue
        pick = "(%(given)s::text[])[1 + (('x' || substr(md5(ctid::text), 1, 7))::bit(28)::int %% cardinality(%(given)s::text[]))]::jsonb"
        value = {
            "text": f"({pick}) #>> '{{}}'",
            "jsonb": f"coalesce({{own}}, '{{{{}}}}') || jsonb_build_object(({pick}) #>> '{{}}', {pick})",
        }.get(kind)
        if value is None:
            continue
        own = names.Identifier(column)
        if kind == "jsonb":
            value = f"CASE WHEN jsonb_typeof({{own}}) = 'object' THEN {{own}} || jsonb_build_object(({pick}) #>> '{{{{}}}}', {pick}) ELSE {{own}} END"
            expression = names.SQL(value).format(own=own)
        else:
            expression = names.SQL(value)
        statement = names.SQL("UPDATE {} SET {} = {} WHERE {} IS NOT NULL").format(
            names.Identifier("jobherd", table), own, expression, own
        )
        with contextlib.suppress(
            psycopg.errors.CheckViolation, psycopg.errors.UniqueViolation
        ):  # the column keeps its values: a fixed set, or keys
            queue.connection.execute(statement, {"given": given})


@contextlib.contextmanager
def served(dsn: str) -> Iterator[str]:
    """Serve the application in this process; yield its address."""
    server = uvicorn.Server(uvicorn.Config(application(dsn), port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT)


def paths(jobs: list[int]) -> list[str]:
    """Return every GET path, with several jobs if a path has an id, and paths with hostile query parameters."""
    found = []
    for route in _routes():
        if "{id:int}" in route:
            found += [
                route.replace("{id:int}", str(job)).replace("{name}", "payload")
                for job in jobs[: 4 * 3 if route == "/jobs/{id:int}" else 4]
            ]
        else:
            found.append(route.replace("{schedule}", "s0"))
    found += [f"/schedules/s{number}" for number in range(1, 5)]
    found += [f"/jobs/{job}" for job in jobs[3::4]]
    for text in CORPUS[:3]:
        found += [
            f"/{page}?{'&'.join(f'{name}={quote(text)}' for name in ('q', 'kind', 'queue', 'tenant', 'actor', 'action', 'state', 'text'))}"
            for page in ("jobs", "queues", "kinds", "audit", "fleet")
        ]
    return list(dict.fromkeys(found))


def _routes() -> list[str]:
    readable = (route for route in application("").routes if "GET" in (getattr(route, "methods", None) or ()))
    return [route.path for route in readable if not route.path.startswith(("/live", "/static", "/logout"))]


LOOK = """() => {
  const odd = [];
  for (const one of document.querySelectorAll("body *")) {
    for (const { name, value } of one.attributes) {
      if (name.startsWith("on")) odd.push(`${one.tagName} has ${name}`);
      if (["href", "src", "action", "formaction", "xlink:href"].includes(name) && /^\\s*(javascript|data|vbscript):/i.test(value)) odd.push(`${name}=${value}`);
    }
    if (["SCRIPT", "IFRAME", "OBJECT", "EMBED", "STYLE"].includes(one.tagName) || (one.tagName === "IMG" && one.getAttribute("src") === "x")) odd.push(one.outerHTML);
    if (one.tagName === "B") odd.push(one.outerHTML);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) {
    const wide = [...document.querySelectorAll("body *")].filter((one) => {
      if (one.closest(".scroll, pre, .state, svg")) return false;
      const room = document.createRange();
      room.selectNodeContents(one);
      return Math.max(room.getBoundingClientRect().right, one.getBoundingClientRect().right) > innerWidth + 1;
    });
    odd.push(`wider than the window: ${wide.slice(-1).map((one) => one.outerHTML.slice(0, 150))}`);
  }
  return odd;
}"""


@pytest.fixture(scope="module")
def hostile(cluster, template) -> Iterator[tuple[str, str, list[int]]]:
    with cluster.database(template=template) as dsn:
        jobs = fill(dsn)
        with served(dsn) as url:
            yield dsn, url, jobs


@pytest.mark.parametrize("width", [390, 1280])
def test_stored_texts_are_not_executed_and_do_not_break_the_layout(browser: Browser, hostile, width):
    _, url, jobs = hostile
    context = browser.new_context(base_url=url, viewport={"width": width, "height": 800})
    context.set_default_timeout(LIMIT * 1000)
    tab = context.new_page()
    said: list[str] = []
    tab.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on(
        "console",
        lambda message: (
            said.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    tab.on("pageerror", lambda error: said.append(str(error)))
    wrong: list[str] = []
    try:
        for path in paths(jobs):
            answer = tab.goto(path, wait_until="load")
            assert answer is not None
            if answer.status >= 500:
                wrong.append(f"{path[:80]}: {answer.status} {tab.inner_text('main')[:200]}")
            elif answer.headers["content-type"].startswith("text/html"):
                wrong += [f"{path[:80]}: {each}" for each in tab.evaluate(LOOK)]
            wrong += [f"{path[:80]}: {each}" for each in said]
            said.clear()
    finally:
        context.close()
    assert wrong == [], "\n".join(wrong)


def test_stored_texts_are_shown_unchanged(browser: Browser, hostile):
    _, url, jobs = hostile
    context = browser.new_context(base_url=url)
    tab = context.new_page()
    try:
        for place, text in enumerate(W01):
            tab.goto(f"/jobs/{jobs[4 * place + 3]}")
            shown = tab.evaluate("document.querySelector('main').textContent")
            assert shown.count(text) >= 5, text
    finally:
        context.close()
