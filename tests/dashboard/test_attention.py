"""The list of what needs attention: the same on every page, in `top` and in `doctor`, and empty if all is well."""

from __future__ import annotations

import asyncio
import html
import re

from jobherd.supervisor.cli.top.frame import Status, draw
from jobherd.supervisor.cli.top.view import View
from jobherd.supervisor.cli.top.watch import Watch
from jobherd.workers.dashboard import attention as strip
from jobherd.workers.dashboard import query_cache
from jobherd.workers.dashboard.database import Database
from jobherd.workers.inspect.attention import PARAMETERS, attention
from tests.cli.rows import child, claim, past, send, supervisor
from tests.cli.shell import jobherd
from tests.dashboard.support import finish
from tests.sql.test_after import end, resolve
from tests.sql.test_flows import start
from tests.support.queue import Queue

PAGES = ("/", "/jobs", "/fleet", "/queues", "/schedules", "/kinds", "/audit", "/jobs/1/none")


def declare(dsn, *kinds):
    for kind in kinds:
        send(
            dsn,
            "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
            " VALUES (%s, 'mail', 0, 5, 3, 7, 30)",
            kind,
        )


def fill(dsn):
    """Create each condition once. Return the expected items."""
    at = supervisor(dsn)
    busy = child(dsn, at)
    child(dsn, at, slot=2)
    declare(dsn, "mail:send", "api:sync", "slow:one")
    send(dsn, "INSERT INTO jobherd.ready (kind, queue) VALUES ('mail:send', 'mail')")
    claim(dsn, busy)
    send(dsn, "INSERT INTO jobherd.ready (kind, queue) SELECT 'mail:send', 'mail' FROM generate_series(1, 3)")
    send(dsn, "SELECT jobherd.set_limit('mail', 1)")
    past(dsn, "failed", many=4)
    past(dsn, "expired")
    past(dsn, "cancelled", many=2)
    past(dsn, "failed", days=2)
    send(
        dsn,
        "INSERT INTO jobherd.scheduled (kind, attempts, run_at, last_error)"
        " SELECT 'api:sync', 1, now() + interval '3 h', '{\"code\": \"DOWN\"}' FROM generate_series(1, 25)",
    )
    send(dsn, "INSERT INTO jobherd.ready (kind, queue) SELECT 'mail:send', 'bulk' FROM generate_series(1, 1200)")
    send(dsn, "SELECT jobherd.pause('bulk'), jobherd.pause('empty')")
    send(dsn, "INSERT INTO jobherd.parked (kind, queue) VALUES ('slow:one', 'slow')")
    send(dsn, "SELECT jobherd.pause(kind => 'slow:one')")
    send(dsn, "SELECT jobherd.enqueue('no:handler', '{}', '{\"delay\": \"1h\"}')")
    send(
        dsn,
        "INSERT INTO jobherd.ready (kind, queue, run_at, created_at) SELECT 'mail:send', 'far', t, t FROM (SELECT now() - interval '2 min') AS x (t)",
    )
    send(dsn, "SELECT jobherd.schedule('nightly', 'mail:send', every => '1 h')")
    send(dsn, "UPDATE jobherd.schedules SET next_at = now() - interval '3 min', plan_from = NULL")
    return SAID


SAID = [
    "5 jobs failed in the last 24 h",
    "25 jobs are retrying",
    "queue bulk is paused: 1,200 jobs wait",
    "kind slow:one is paused: 1 job waits",
    "queue mail is at its limit: 3 jobs wait",
    "no handler for kind no:handler: 1 job waits",
    "no worker serves queue far",
    "schedule nightly does not run in time",
]


def items(page, path="/"):
    """Return the link of each item in the attention strip of a page, by the item's text."""
    text = page.get(path).text
    (nav,) = re.findall(r'<nav class="attention".*?</nav>', text, re.DOTALL) or [""]
    found = re.findall(r'href="([^"]*)">.*?</span> (.*?)</a>', nav)
    return {html.unescape(what): html.unescape(to) for to, what in found}


def test_attention_list_is_empty_if_all_is_well(page, database):
    child(database, supervisor(database))
    past(database, "completed", many=3)
    past(database, "failed", days=2)
    assert 'class="attention"' not in page.get("/").text
    assert jobherd("doctor", dsn=database).lines[-1].startswith("no problems")


def test_every_page_top_and_doctor_show_the_same_attention_list(page, database):
    said = fill(database)
    for path in PAGES:
        assert list(items(page, path)) == said, path
    for to in items(page).values():
        assert page.get(to).status_code == 200, to
    assert page.get("/jobs?state=failed&state=expired&since=24h").text.count('<tr id="job-') == 5
    answer = jobherd("doctor", dsn=database)
    assert [line.removeprefix("! ") for line in answer.lines[: len(said)]] == said
    assert [one["text"] for one in jobherd("doctor", "--json", dsn=database).json["attention"]] == said

    async def look():
        watch = Watch(database, actor="a test")
        try:
            return await watch.look()
        finally:
            await watch.close()

    lines = draw(finish(look()), View(), Status("here", "12:00"), width=400, height=30)
    assert lines[2].plain.rstrip() == "  ".join(f"! {text}" for text in said)


def test_doctor_reports_a_paused_backlog_instead_of_no_problems(database):
    child(database, supervisor(database))
    declare(database, "mail:send")
    send(database, "INSERT INTO jobherd.ready (kind, queue) SELECT 'mail:send', 'mail' FROM generate_series(1, 25000)")
    send(database, "SELECT jobherd.pause('mail')")
    answer = jobherd("doctor", dsn=database)
    assert answer.code == 0
    assert answer.lines[0] == "! queue mail is paused: 10,000+ jobs wait"
    assert answer.lines[-1].startswith("1 condition needs attention")
    assert "no problems" not in answer.out


def test_jobs_without_any_worker_are_the_first_attention_item(page, database):
    send(database, "SELECT jobherd.enqueue('mail:send')")
    assert list(items(page))[0] == "no worker runs, and jobs wait"


def test_failed_flow_is_an_attention_item_until_it_runs_again(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"})
        old, well = start(queue, {"node": "old"}), start(queue, {"node": "well"})
        for outcome in ("failed", "failed", "ok"):
            end(queue, outcome)
            resolve(queue)
        queue.run("UPDATE jobherd.flows SET ended_at = now() - interval '2 days' WHERE id = %s", old)
        assert items(page)["1 flow failed in the last 24 h"] == "/flows?state=failed"
        text = page.get("/flows?state=failed").text
        assert f'<a href="/flows/{flow}">test</a>' in text
        assert f'<tr id="flow-{well}">' not in text
        assert "! 1 flow failed in the last 24 h" in jobherd("doctor", dsn=database).lines
        page.act("/flows/action", id=flow, do="retry")
        assert not [text for text in items(page) if "flow" in text]
        assert "No flow matches" in page.get("/flows?state=cancelled").text


def test_names_beyond_the_limit_are_counted():
    row = {"scope": "queue", "jobs": 2, "capped": False, "total": 12}
    rows = [
        {**row, "what": what, "name": f"q{n}"}
        for what in ("paused", "limit", "kind", "queue", "schedule")
        for n in range(3)
    ]
    rest = [item.text for item in attention(rows)[3::4]]
    assert rest == [
        "9 more pauses with a backlog",
        "9 more limits reached",
        "9 more kinds without a handler",
        "9 more queues without a worker",
        "9 more schedules not in time",
    ]


def test_action_updates_the_attention_list_of_the_next_page(page, database):
    child(database, supervisor(database))
    declare(database, "mail:send")
    send(database, "INSERT INTO jobherd.ready (kind, queue) VALUES ('mail:send', 'mail')")
    assert items(page) == {}
    page.act("/queues/action", scope="queue", name="mail", do="pause")
    assert items(page) == {"queue mail is paused: 1 job waits": "/queues?queue=mail#queue-mail"}


def test_failures_beyond_the_read_limit_are_counted_by_the_rollup(database):
    past(database, "cancelled", many=1000)
    send(
        database,
        "INSERT INTO jobherd.rollup_failures (at, step, kind, state, code, jobs, last_at, last_job)"
        " VALUES (date_trunc('minute', now()), 60, 'a:b', 'failed', 'BOOM', 70000, now(), 1)",
    )

    async def ask():
        db = Database(database)
        try:
            return await db.rows("observe/list_attention", PARAMETERS)
        finally:
            await db.close()

    assert [(row["what"], row["jobs"]) for row in finish(ask())] == [("failed", 70000)]


def test_attention_query_is_shared_and_a_slow_one_is_cached_for_longer(monkeypatch):
    monkeypatch.setattr(query_cache, "PATIENCE", 60.0)
    now = 0.0
    asked = 0

    class Slow:
        async def rows(self, *_):
            nonlocal now, asked
            asked += 1
            await asyncio.sleep(0)
            now += 2.0
            return []

    async def several():
        nonlocal now
        kept = strip.Attention(Slow(), clock=lambda: now)
        await asyncio.gather(*(kept.refresh() for _ in range(20)))
        assert asked == 1
        assert kept.strip() == {"attention": []}
        now += 39.0
        await kept.refresh()
        assert asked == 1
        kept.forget()
        await kept.refresh()
        assert asked == 2
        now += 61.0
        assert kept.strip() == {"attention": None}

    finish(several())


def test_static_file_does_not_start_the_attention_query(page):
    page.get("/static/dashboard.css")
    assert page.app.state.attention.strip() == {"attention": None}
