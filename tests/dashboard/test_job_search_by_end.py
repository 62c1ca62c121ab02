"""Finished jobs sorted by the time of their end, with pagination, and the search for a payload field."""

from __future__ import annotations

from itertools import count

from starlette.datastructures import QueryParams

from jobherd.workers.dashboard import job_search_by_end
from jobherd.workers.dashboard.database import Database
from jobherd.workers.dashboard.filters import Wanted
from jobherd.workers.dashboard.job_search import JobSearch
from jobherd.workers.dashboard.job_search_by_end import search_jobs_by_end
from tests.cli.rows import past, send
from tests.dashboard.support import finish
from tests.dashboard.test_job_search import declare, fill, ids, looks
from tests.dashboard.test_jobs import listed

BY_END = "SELECT id FROM jobherd.history WHERE kind = ANY (%s) ORDER BY finished_at DESC, id DESC"


def ended(dsn, wanted, **more):
    async def look():
        database = Database(dsn)
        try:
            return await search_jobs_by_end(database, wanted, **more)
        finally:
            await database.close()

    return finish(look())


def pages(dsn, wanted, **more):
    """Return the ids of all pages in order."""
    found = ended(dsn, wanted, **more)
    seen = ids(found)
    while found.ended_before is not None:
        found = ended(dsn, wanted, before=found.ended_before, **more)
        seen += ids(found)
    return seen


def scatter(dsn, *, many):
    """Insert jobs that ended in another order than that of their ids, over weeks, many of them at the same time."""
    past(dsn, "completed", many=many, kind="a:b")
    past(dsn, "failed", many=many // 10, kind="a:c")
    send(
        dsn,
        "UPDATE jobherd.history SET started_at = t, run_at = t, created_at = t, finished_at = t FROM ("
        " SELECT id AS job, now() - CASE id %% 4 WHEN 0 THEN interval '3 days' WHEN 1 THEN make_interval(secs => id * 7919 %% 5000)"
        " WHEN 2 THEN make_interval(hours => (id * 31 %% 500)::integer) ELSE interval '2 hours' END AS t FROM jobherd.history) AS m WHERE id = job",
    )


def test_every_finished_job_is_listed_once_in_the_order_of_its_end(database):
    scatter(database, many=600)
    send(database, "SELECT jobherd.enqueue('a:b', '{}')")
    for kinds in (["a:b", "a:c"], ["a:c"]):
        expected = [one for (one,) in send(database, BY_END, kinds)]
        wanted = Wanted(kind="" if len(kinds) > 1 else kinds[0])
        assert pages(database, wanted, limit=17) == expected
        assert ids(ended(database, wanted, limit=1000)) == expected
    failed = Wanted(states=("failed", "running"))
    assert pages(database, failed, limit=7) == [one for (one,) in send(database, BY_END, ["a:c"])]
    assert ids(ended(database, Wanted(states=("ready",)))) == []
    among = ended(database, Wanted(since="1d", until="1h"), limit=1000)
    told = send(
        database,
        "SELECT id FROM jobherd.history WHERE finished_at BETWEEN now() - interval '1 day' AND now() - interval '1 hour' ORDER BY finished_at DESC, id DESC",
    )
    assert ids(among) == [one for (one,) in told]


def test_dense_time_range_is_divided_until_its_jobs_can_be_sorted(database, monkeypatch):
    monkeypatch.setattr(job_search_by_end, "MOST", 100)
    scatter(database, many=1000)
    assert pages(database, Wanted(), limit=50) == [one for (one,) in send(database, BY_END, ["a:b", "a:c"])]


def test_first_statement_finds_the_latest_jobs_however_long_ago_they_ended(database, monkeypatch):
    asked = []
    rows = JobSearch.rows

    async def noted(self, name, steer, **step):
        asked.append(step)
        return await rows(self, name, steer, **step)

    monkeypatch.setattr(JobSearch, "rows", noted)
    assert ids(ended(database, Wanted())) == []
    for days in (9, 0.1, 0):
        past(database, "completed", many=60, days=days)
        asked.clear()
        assert len(ended(database, Wanted(), limit=50).rows) == 50
        assert len(asked) == 1, f"{days} days ago"
    send(
        database,
        "UPDATE jobherd.history SET started_at = NULL, finished_at = finished_at - interval '5 h' WHERE id IN (SELECT max(id) FROM jobherd.history)",
    )
    assert pages(database, Wanted(), limit=50) == [one for (one,) in send(database, BY_END, ["mail:receipt"])]


def test_job_of_a_worker_whose_clock_is_ahead_is_listed_first(database):
    past(database, "completed", many=3)
    ahead = past(database, "completed")
    past(database, "completed", many=3)
    send(database, "UPDATE jobherd.history SET finished_at = now() + interval '1 minute' WHERE id = %s", ahead)
    assert ids(ended(database, Wanted()))[0] == ahead


def test_search_by_end_that_runs_out_of_time_returns_where_to_continue(database):
    past(database, "completed", many=10, days=2)
    ticks = count(0, 0.7)
    found = ended(database, Wanted(kind="no:such"), clock=lambda: next(ticks), budget=2.0)
    assert (found.rows, found.is_late) == ([], True)
    assert found.ended_before is not None


def test_list_can_be_sorted_by_end_and_keeps_the_order(page, database):
    made = fill(database)
    over = {made[state] for state in ("completed", "failed", "cancelled", "expired")}
    first = made["completed"]
    send(database, "UPDATE jobherd.history SET finished_at = finished_at + interval '1 hour' WHERE id = %s", first)
    answer = page.get("/jobs")
    assert 'href="/jobs?sort=end"' in answer.text
    answer = page.get("/jobs?sort=end")
    assert set(listed(answer)) == over
    assert listed(answer)[0] == first
    assert '<option value="end" selected>' in answer.text
    assert 'href="/jobs?state=failed&amp;sort=end"' in answer.text, "the tabs must keep the order"
    assert "live jobs are not in this order" in answer.text
    past(database, "completed", many=60)
    answer = page.get("/jobs?sort=end")
    seen = listed(answer)
    onward = answer.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    answer = page.get(onward)
    assert not set(listed(answer)) & set(seen)
    assert len(listed(answer)) + len(seen) == 64
    for asked in (
        "sort=angry",
        "sort=end&ended=x",
        "sort=end&ended=2026-01-01,7",
        "sort=end&ended=2026-01-01T00:00Z," + "9" * 40,
    ):
        assert page.get(f"/jobs?{asked}").status_code == 200


FIELDS = {
    "id:7": [0, 1, 2], "id:70": [3], "id:7*": [0, 1, 2, 3], "city:New York": [4], "city:New*": [4], "city:new york": [],
    "name:Zoë": [5, 6], "ok:true": [7], "ok:tru": [], "a.b:(x|y)": [8], "a.b:.x.y.": [], "url:http://x:80/?a=1": [9],
    "note:id": [], "id: 7": [0, 1, 2], "path:C:\\temp": [11], "nul:a*": [12],
}  # fmt: skip
"""Search terms, each with the positions of the payloads below that it finds."""
PAYLOADS = (
    '{"id": 7}', '{"id":"7","more":1}', '{"list": [{"x": {"id" : 7 }}]}', '{"id": 70}', '{"city": "New York"}',
    '{"name": "Zoë"}', '{"name": "Zo\\u00eb"}', '{"ok": true}', '{"a.b": "(x|y)"}', '{"url": "http://x:80/?a=1"}',
    '{"note": "\\"id\\": 7,"}', '{"path": "C:\\\\temp"}', '{"nul": "a\\u0000b"}',
)  # fmt: skip


def test_search_finds_jobs_by_the_value_of_a_payload_field(database):
    declare(database, "a:b", "mail:receipt")
    jobs = [past(database, "completed") for _ in PAYLOADS]
    for job, payload in zip(jobs, PAYLOADS, strict=True):
        send(database, "UPDATE jobherd.history SET payload = %s::text::json WHERE id = %s", payload, job)
    waits = [send(database, "SELECT jobherd.enqueue('a:b', %s)", PAYLOADS[place])[0][0] for place in (0, 3)]
    with looks(database) as look:
        for field, matches in FIELDS.items():
            expected = [jobs[place] for place in matches]
            assert sorted(ids(ended(database, Wanted(field=field)))) == sorted(expected), field
            expected += [waits[at] for at, place in enumerate((0, 3)) if place in matches]
            assert ids(look(Wanted(field=field))) == sorted(expected, reverse=True), field


def test_field_search_covers_the_last_day_and_skips_redacted_or_undeclared_kinds(page, database):
    old = past(database, "completed", days=2)
    new = past(database, "completed")
    secret = past(database, "completed", kind="card:charge")
    with looks(database) as look:
        assert ids(look(Wanted(field="order_id:7"))) == [], (
            "the redacted fields of a kind are unknown before it is declared"
        )
        declare(database, "mail:receipt")
        declare(database, "card:charge", redact='["$.order_id"]')
        assert ids(look(Wanted(field="order_id:7"))) == [new]
        assert ids(ended(database, Wanted(field="order_id:7"))) == [new]
        assert ids(look(Wanted(text="order_id"))) == [new]
        declare(database, "card:charge")
        assert ids(look(Wanted(field="order_id:7", since="3d"))) == [secret, new, old]
    answer = page.get("/jobs?field=order_id:7")
    assert listed(answer) == [secret, new]
    assert "the last 24h only" in answer.text
    assert 'Remove the condition on field"' in answer.text
    assert "Write a payload field as" in page.get("/jobs?field=order_id").text
    assert Wanted.read(QueryParams("field=id:7&sort=end"))[0].query() == "field=id%3A7&sort=end"
