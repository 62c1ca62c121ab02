"""The overview and the pages of kinds, over a database with finished, running and waiting jobs."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import unquote

import pytest

from jobherd import sql
from jobherd.workers.dashboard.attention import Attention
from jobherd.workers.dashboard.database import Database
from jobherd.workers.dashboard.kinds import weighed
from jobherd.workers.dashboard.overview import queues_of
from tests.cli.rows import child, claim, supervisor
from tests.dashboard.support import W01
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def look(queue: Queue) -> None:
    while queue.connection.execute(queue.text("maintenance/update_rollup"), {"span": 86400.0, "lag": 30.0}).fetchone()[
        1
    ]:
        pass


def declare(queue: Queue, *kinds: str) -> None:
    for kind in kinds:
        queue.run(
            "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) VALUES (%s, 'mail', 0, 5, 3, 7, 30)",
            kind,
        )


def end(queue: Queue, kind: str, outcome: str = "ok", count: int = 1, **more: object) -> list[int]:
    child = queue.child()
    queue.enqueue_many(kind, count)
    batch = child.claim(count)
    return child.settle(batch[0].token, [job.id for job in batch], outcome, **more)


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_overview_without_jobs_shows_the_next_step(page, queue):
    assert "No supervisor is running" in page.get("/").text
    queue.supervisor()
    assert "No handler is loaded" in page.get("/").text
    declare(queue, "mail:send")
    assert "No job yet" in page.get("/").text
    queue.enqueue("mail:send")
    text = page.get("/").text
    assert 'class="empty"' not in text
    assert "Ready 1 oldest" in plain(text)


def test_retrying_jobs_are_counted_and_listed_by_kind_and_code(page, queue):
    assert "Retrying 0 none" in plain(page.get("/").text)
    end(queue, "api:sync", "retry", count=3, error="OSError: refused", code="DOWN", delay=3600.0)
    text = page.get("/").text
    assert "Retrying 3 of the scheduled jobs" in plain(text)
    (link,) = re.findall(r'href="(/jobs\?state=retrying&[^"]*)"', text)
    assert link.replace("&amp;", "&") == "/jobs?state=retrying&kind=api%3Async&code=DOWN"
    shown = plain(page.get(link.replace("&amp;", "&")).text)
    assert shown.count("OSError: refused") == 3
    declare(queue, "api:sync", "other:kind")
    assert "Jobs that retry" in page.get("/kinds/api:sync").text
    assert "Jobs that retry" not in page.get("/kinds/other:kind").text


def test_failure_that_the_rollup_has_not_counted_yet_is_mentioned(page, queue):
    declare(queue, "mail:send", "other:kind")
    look(queue)
    end(queue, "mail:send", "failed", error="broken")
    for address in ("/", "/kinds/mail:send"):
        text = plain(page.get(address).text)
        assert "Failed 0 1 not counted yet" in text
        assert "1 failed job is not counted here yet: see the errors" in text
        assert "Nothing failed" not in text
    assert "Nothing failed in the last hour" in page.get("/kinds/other:kind").text
    look(queue)
    text = plain(page.get("/").text)
    assert "not counted" not in text
    assert "Failed 1 100 % of ended jobs" in text


@pytest.mark.parametrize(("outcome", "which"), [("failed", "last"), ("retry", "for example")])
def test_failure_group_marks_its_exception_as_the_last_one_or_an_example(page, queue, outcome, which):
    declare(queue, "mail:send")
    for error in ("ValueError: no address", "ConnectionError: refused"):
        end(queue, "mail:send", outcome, error=error, code="UNHANDLED_ERROR", delay=100.0)
    end(queue, "mail:send", outcome, count=2, error="Refused: full", code="REFUSED", delay=100.0)
    look(queue)
    for address in ("/", "/kinds/mail:send"):
        text = page.get(address).text
        cells = [plain(cell) for cell in re.findall(r'data-name="Error">(.*?)</td>', text)]
        assert sorted(cells) in (
            sorted(["REFUSED", f"{which}: {name} by exception"]) for name in ("ConnectionError", "ValueError")
        )
        (link,) = re.findall(r'<a href="(/errors[^"]*kind=[^"]*)">by exception', text)
        found = plain(page.get(link.replace("&amp;", "&")).text)
        assert "ConnectionError" in found
        assert "ValueError" in found


def test_failure_chart_shows_failed_attempts_apart_from_failed_jobs(page, queue):
    declare(queue, "mail:send")
    look(queue)
    end(queue, "mail:send", "retry", count=2, ran=1.0, error="again", delay=100.0)
    look(queue)
    for address in ("/", "/kinds/mail:send"):
        answer = page.get(address)
        assert "Failed 0 2 failed attempts" in plain(answer.text)
        assert "0 jobs and 2 failed attempts that were followed by another in all" in answer.text
        assert re.search(r'<path class="tone-soft[^"]*" d="M', answer.text)
        assert "failed 0, expired 0, failed attempts 2" in answer.text
    end(queue, "mail:send", "failed", error="broken")
    look(queue)
    assert "Failed 1 100 % of ended jobs, 2 failed attempts" in plain(page.get("/").text)


def test_overview_shows_finished_failed_running_and_waiting_jobs(page, queue):
    declare(queue, "mail:send")
    look(queue)
    end(queue, "mail:send", count=3, ran=0.25)
    [broken] = end(queue, "mail:send", "failed", ran=2.0, error="Refused: mailbox full\nat line 3", code="REFUSED")
    look(queue)
    holder = queue.child()
    queue.enqueue_many("mail:send", 2, queue="slow")
    assert len(holder.claim(2)) == 2
    queue.enqueue("mail:later", delay=5039.0)  # shown as 1 h 23 min for the next 59 s
    queue.run("SELECT jobherd.pause('bulk', 'night')")
    for window in ("hour", "day", "week"):
        answer = page.get(f"/?window={window}")
        assert answer.status_code == 200
        text = plain(answer.text)
        assert f"Completed 3 in the last {window}" in text
        assert "Failed 1 25 % of ended jobs" in text
        assert "Refused: mailbox full" in text
        assert "at line 3" not in text
        assert "No job ended in this period." not in text
        points = [len(said.split("|")) for said in re.findall(r'data-said="([^"]*)"', answer.text)]
        assert points == [{"hour": 60, "day": 96, "week": 168}[window]] * 4
        assert (
            f"/jobs?state=failed&amp;kind=mail%3Asend&amp;code=REFUSED&amp;since={ {'hour': '1h', 'day': '24h', 'week': '7d'}[window] }"
            in answer.text
        )
        assert f"/jobs/{broken}" in answer.text
        assert re.search(r"and 1 more mail:send [0-9.]+ (ms|s) test pid 1", text)
        assert "slow 0 – 2 0" in text
        assert re.search(r"bulk .{1,4} paused 0", text)
        assert "mail:later in 1 h 23 min" in text
    assert "Running 2 longest" in text
    assert "Scheduled 1 for later" in text


def test_charts_can_be_limited_to_one_kind_without_scripts(page, queue):
    declare(queue, "mail:send", "other:kind")
    look(queue)
    end(queue, "mail:send", count=3)
    end(queue, "other:kind", count=2)
    look(queue)
    answer = page.get("/?window=day&kind=mail:send")
    assert "Completed 3 in the last day" in plain(answer.text)
    assert '<option value="mail:send" selected>' in answer.text
    assert '<option value="other:kind">' in answer.text
    assert 'data-live="past:day mail:send"' in answer.text
    assert 'href="/?window=week&amp;of=mail%3Asend"' in answer.text
    answer = page.get("/?window=day&kind=")
    assert "Completed 5 in the last day" in plain(answer.text)
    assert 'data-live="past:day"' in answer.text
    assert "Completed 0" in plain(page.get("/?kind=%22%3E%3Cscript%3E").text)


def test_charts_of_a_queue_or_host_count_its_jobs_and_show_what_they_leave_out(page, queue):
    declare(queue, "mail:send")
    look(queue)
    end(queue, "mail:send", count=3, ran=2.0)
    end(queue, "mail:send", "retry", ran=1.0, error="again", delay=100.0)
    queue.enqueue("mail:send", queue="slow")
    child = queue.child()
    [job] = child.claim(1)
    child.settle(job.token, [job.id], "failed", ran=1.0, error="broken")
    look(queue)
    text = page.get("/").text
    assert '<option value="queue slow">' in text
    assert '<option value="host host">' in text
    for address in ("/?window=day&queue=slow", "/?window=day&of=queue+slow"):
        text = page.get(address).text
        assert "Completed 0 in the last day" in plain(text)
        assert "Failed 1 100 % of ended jobs Start" in plain(text)
        assert "Duration 1.0 s average" in plain(text)
        assert "Failed attempts before another attempt are not counted by queue." in text
        assert '<option value="queue slow" selected>' in text
        assert 'data-live="past:day queue slow"' in text
        assert "/jobs?state=failed&amp;state=expired&amp;since=24h&amp;queue=slow" in text
        assert 'data-jobs="/jobs?state=failed&amp;state=expired&amp;queue=slow"' in text
        assert [jobs for _, jobs in listed(page, text)] == [1]
    (peaks,) = re.findall("<h2>Busiest</h2>.*?</table>", page.get("/?window=day").text, re.DOTALL)
    assert re.findall(r'href="(/[?][^"]*)">', peaks) == [
        f"/?window=day&amp;{one}" for one in ("kind=mail%3Asend", "queue=mail", "queue=slow", "host=host")
    ]
    assert [int(jobs) for jobs in re.findall(r'"Most per 15 min">(\d+)<', peaks)] == [4, 3, 1, 4]
    text = page.get("/?host=host").text
    assert "<h2>Busiest</h2>" not in text
    assert "Completed 3 in the last hour" in plain(text)
    assert "Failed 1 25 % of ended jobs, 1 failed attempts" in plain(text)
    assert "Duration 1.8 s average" in plain(text)
    assert "A job that never started has no host." in text
    assert "/jobs?state=completed" not in text, "the list of jobs has no filter for a host"
    assert "data-jobs" not in text and listed(page, text) == []
    assert "From Completed Failed Expired" in plain(page.get("/figures?of=host+host").text)
    assert "Completed 0" in plain(page.get("/?host=%22%3E%3Cscript%3E").text)


def test_invalid_query_values_do_not_break_the_pages(page):
    for path in ("/?window=century", "/kinds?window=&sort=no", "/kinds?sort=p99&window=week"):
        assert page.get(path).status_code == 200
    assert "No supervisor has ever loaded" in page.get("/kinds/no:such").text
    assert page.get("/kinds/no%00such").status_code == 404


def test_page_of_a_kind_shows_only_that_kind(page, queue):
    declare(queue, "mail:send")
    look(queue)
    end(queue, "mail:send", ran=0.25)
    end(queue, "other:job", "failed", error="no", code="OTHER")
    look(queue)
    text = page.get("/kinds/mail:send").text
    assert "Completed 1 in the last hour" in plain(text)
    assert "Nothing failed in the last hour." in text
    assert 'data-live="past:hour mail:send"' in text
    assert "OTHER" not in text
    assert "No supervisor has ever loaded" in page.get("/kinds/other:job").text


def test_kinds_are_sorted_by_processor_time_or_by_another_column(page, queue):
    declare(queue, "a:cheap", "b:dear", "c:idle")
    look(queue)
    end(queue, "a:cheap", count=5, ran=0.002)
    end(queue, "a:cheap", "failed", ran=0.002, error="no")
    end(queue, "b:dear", count=2, ran=9.0, usage='{"cpu_user": 7.5, "cpu_system": 0.5, "max_rss": 104857600}')
    look(queue)

    def order(sort):
        text = page.get(f"/kinds?sort={sort}").text
        assert len(re.findall("aria-sort=", text)) == 1
        return [unquote(name) for name in re.findall(r'<th scope="row"><a href="/kinds/([^?"]*)', text)]

    assert order("cpu") == ["b:dear", "a:cheap", "c:idle"]
    for sort, first in {
        "kind": "a",
        "jobs": "a",
        "failed": "a",
        "p50": "b",
        "p95": "b",
        "p99": "b",
        "ran": "b",
        "memory": "b",
    }.items():
        assert [name[0] for name in order(sort)][:2] == [first, "b" if first == "a" else "a"], sort
    text = plain(page.get("/kinds").text)
    assert re.search(r"b:dear 16 s 100 % 18 s 100 MiB 2 2/h 0 (9|8)\.[0-9] s", text)
    assert "a:cheap 12 ms" in text
    assert "Failed 1 12 % of ended jobs" in text


def test_errors_are_escaped_and_redacted(page, queue):
    declare(queue, "card:charge")
    queue.run("UPDATE jobherd.kinds SET redact = %s::jsonb", json.dumps(["$.card"]))
    look(queue)
    child = queue.child()
    for place, word in enumerate(W01):
        job = queue.enqueue("card:charge", json.dumps({"card": "4111222233334444"}))
        batch = child.claim(1)
        child.settle(batch[0].token, [job], "failed", error=f"card 4111222233334444: {word}", code=f"CODE<{place}>")
    look(queue)
    for path in ("/", "/kinds/card:charge", "/kinds"):
        text = page.get(path).text
        assert "41112222" not in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<svg/onload" not in text
        assert "CODE<" not in text
        assert " style=" not in text
    assert "{{7*7}}" in page.get("/").text


def test_no_statement_of_these_pages_scans_a_whole_hot_table(queue):
    queue.run("INSERT INTO jobherd.ready (kind, queue) SELECT 'a:b', 'q' || n % 3 FROM generate_series(1, 60000) AS n")
    queue.run(
        "INSERT INTO jobherd.scheduled (kind, run_at) SELECT 'a:b', now() + n * interval '1 s' FROM generate_series(1, 60000) AS n"
    )
    queue.run("VACUUM ANALYZE jobherd.ready, jobherd.scheduled")
    bounds = {"most": 10_000, "queues": 12, "hours": 24, "names": []}
    for name in (
        "observe/measure_ready",
        "observe/measure_scheduled",
        "observe/measure_running",
        "dashboard/count_due",
        "dashboard/list_due",
        "dashboard/list_running",
        "dashboard/show_first_steps",
    ):
        [(plan,)] = queue.connection.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql.load(name), bounds).fetchall()
        read = [
            node
            for node in nodes(plan[0]["Plan"])
            if node.get("Relation Name") in {"ready", "scheduled"} and node["Node Type"] == "Seq Scan"
        ]
        assert not [node for node in read if node["Actual Rows"] > 10_000], name
    for name, more in {
        "dashboard/sum_chart": {"seconds": 3600, "point": 60, "kind": None},
        "dashboard/sum_scope_chart": {"seconds": 3600, "point": 60, "scope": "host", "name": "a"},
        "dashboard/list_scope_choices": {"seconds": 604_800, "most": 200},
        "dashboard/list_busiest": {"seconds": 3600, "point": 60, "most": 3},
        "dashboard/list_kinds": {"seconds": 3600, "most": 10},
        "dashboard/list_failures": {"seconds": 3600, "kind": None, "most": 10, "hidden": []},
    }.items():
        [(plan,)] = queue.connection.execute("EXPLAIN (FORMAT JSON) " + sql.load(name), more).fetchall()
        assert not [
            node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") in {"ready", "scheduled", "running"}
        ], name


def nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_queues_are_listed_once_with_the_deepest_first():
    held = {
        "ready": [{"queue": "b", "jobs": 3, "capped": False, "oldest": 1.5}],
        "scheduled": [{"queue": "b", "jobs": 10, "capped": True, "oldest": 0.0}],
        "running": [
            {"queue": "c", "jobs": 1, "capped": False, "oldest": 4.0},
            {"queue": None, "jobs": 5, "capped": False, "oldest": 4.0},
        ],
    }
    rows = queues_of(held, {"a": {"paused": True}, "idle": {"paused": False}})
    assert [row["queue"] for row in rows] == ["b", "(other)", "c", "a"]
    assert (rows[0]["scheduled"], rows[0]["scheduled_capped"], rows[0]["oldest"]) == (10, True, 1.5)
    assert (rows[3]["ready"], rows[3]["oldest"], rows[3]["gate"]) == (0, None, {"paused": True})
    assert rows[0]["gate"] is None


def test_overview_marks_queues_at_their_limit_and_all_queues_if_everything_is_paused(page, queue, database):
    def shown(name):
        found = re.search(rf'<th scope="row"><a href="/jobs\?queue={name}">.*?</th>', page.get("/").text)
        return plain(found[0])

    queue.run("SELECT jobherd.set_limit('media', 1), jobherd.set_limit('roomy', 9)")
    queue.enqueue_many("a:b", 2, queue="media")
    assert shown("media") == "media", "no job of the queue runs yet, so a worker may start one"
    claim(database, child(database, supervisor(database)))
    queue.enqueue_many("a:b", 2, queue="roomy")
    assert shown("media").endswith("at its limit")
    assert shown("roomy") == "roomy"
    queue.run("SELECT jobherd.pause('*')")
    assert shown("media").endswith("paused") and shown("roomy").endswith("paused")


def test_kind_with_only_cancelled_jobs_has_no_failure_rate_and_no_cpu_share():
    row = {
        "kind": "a",
        "completed": 0,
        "failed": 0,
        "cancelled": 2,
        "expired": 0,
        "cpu": 0.0,
        "ran": 0.0,
        "p50": None,
        "p95": None,
        "p99": None,
        "memory": None,
    }
    [found] = weighed([row], dict(row), "cpu", 3600)
    assert found["failure_rate"] is None
    assert found["cpu_share"] is None
    assert found["jobs"] == 2


def test_pages_show_a_failed_job_whose_id_is_below_1(page, queue):
    """A database that is older than the constraint against such ids may contain one, and the overview links to it."""
    queue.connection.execute("ALTER TABLE jobherd.ready DROP CONSTRAINT ready_counts_are_counts")
    queue.run("INSERT INTO jobherd.ready (id, kind) VALUES (-7, 'mail:send')")
    child = queue.child()
    batch = child.claim(1)
    child.settle(batch[0].token, [job.id for job in batch], "failed", error="it cannot be started")
    look(queue)
    assert "/jobs/-7" in page.get("/").text
    assert "it cannot be started" in page.get("/jobs/-7").text
    assert page.get("/jobs/--7").status_code == 404


def test_charts_show_times_of_day_and_link_to_their_jobs(page, queue):
    declare(queue, "mail:send")
    look(queue)
    end(queue, "mail:send", "failed", error="Refused: no", code="REFUSED")
    look(queue)
    text = page.get("/?window=day").text
    assert len(re.findall(r'<span><time [^>]*data-as="tick"', text)) == 4 * 5
    assert "No job completed in this period." in text
    assert 'data-jobs="/jobs?state=failed&amp;state=expired"' in text
    [(to, jobs)] = listed(page, text)
    assert (to.partition("&since=")[0], jobs) == ("/jobs?state=failed", 1)
    text = page.get("/kinds/mail:send?window=day").text
    assert 'data-jobs="/jobs?state=failed&amp;state=expired&amp;kind=mail%3Asend"' in text
    assert listed(page, text) == [(f"{to}&kind=mail%3Asend", 1)]


def test_each_page_reads_in_at_most_three_transactions(page, queue, monkeypatch):
    """Cost: a transaction takes four round trips, and more server time than most statements of these pages."""
    begun = []
    transaction = Database._transaction

    def count(self, **more):
        begun.append(more)
        return transaction(self, **more)

    async def known(self):
        """Skip the query of the attention strip, which runs at other times."""

    monkeypatch.setattr(Attention, "refresh", known)
    monkeypatch.setattr(Database, "_transaction", count)
    job = queue.enqueue("mail:send")
    page.get(f"/jobs/{job}")  # fills the cache of redacted paths
    paths = ("/", "/?window=week&queue=default", "/figures", "/kinds", "/kinds/mail:send", "/queues", f"/jobs/{job}")
    for path in paths:
        begun.clear()
        assert page.get(path).status_code == 200
        most = 3 if path in {"/", "/kinds/mail:send"} else 2 if path.startswith("/?") else 1
        assert begun == [{"read_only": True}] * most, path
    page.get("/jobs")  # fills the cache of state counts
    begun.clear()
    page.get("/jobs")
    assert len(begun) == 3, "expected one for live jobs, one for finished jobs, one for everything else"


def test_figures_equal_those_of_the_charts_without_empty_rows(page, queue):
    assert "No job ended in this period." in page.get("/figures").text
    declare(queue, "mail:send", "other:kind")
    look(queue)
    end(queue, "mail:send", count=3, ran=2.0)
    end(queue, "mail:send", "retry", ran=1.0, error="again", delay=100.0)
    end(queue, "other:kind", "failed", ran=1.0, error="broken")
    look(queue)
    for of, completed, failed, again in (("", 3, 1, 1), ("mail:send", 3, 0, 1), ("queue mail", 3, 1, 0)):
        text = page.get("/figures", params={"window": "week", "of": of}).text
        rows = [[int(cell) for cell in re.findall(r">(\d+)</td>", row)] for row in text.split("<tr>")[2:]]
        assert len(rows) <= 2, "expected one row, or two if an hour ended during the test"
        assert [sum(cells) for cells in zip(*rows, strict=True)][:5] == [completed, failed, 0, again, 0]
    assert page.get("/figures?window=%00&of=%00queue+").status_code == 200


def listed(page, text):
    """Return the links in the table of figures of a page, and how many jobs each link lists."""
    (to,) = re.findall(r'href="(/figures[^"]*)">These figures as a table</a>', text)
    figures = page.get(unescape(to)).text
    links = [unescape(one) for one in re.findall(r'<th scope="row"><a href="(/jobs[^"]*)"', figures)]
    return [(one, page.get(one).text.count('<tr id="job-')) for one in links]
