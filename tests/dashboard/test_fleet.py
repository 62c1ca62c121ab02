"""The page of the fleet: status reports, fleet commands, and their answers.

The dashboard requests reports only while the page is viewed.
"""

from __future__ import annotations

import json
import re
import threading
import time

import psycopg
import pytest

from jobherd.workers.dashboard import application, fleet
from jobherd.workers.dashboard.database import Database
from tests.cli.rows import claim, remote_worker, send, supervisor
from tests.dashboard.support import W01, finish
from tests.support.patience import LIMIT

FACTS = {
    "run_state": "serving", "wanted": 2, "most": 64, "reloading": True, "queues": ["mail", "media"], "rss": 40_000_000, "watched": 0,
    "ends": [{"name": "worker 1", "pid": 12, "ago": 5400, "cause": "signal", "sentence": "Process 12 died of SIGKILL (not sent by the supervisor).", "job": 16}],
    "children": [
        {"name": "worker 0", "kind": "worker", "state": "computing", "pid": 11, "cpu": 0.98, "rss": 120_000_000, "jobs": 1203, "restarts": 0,
         "held": 3, "job": 17, "job_kind": "mail:receipt", "elapsed": 3.2, "attempt": 2, "most_attempts": 5, "progress": {"fraction": 0.4, "note": "half way"}},
        {"name": "worker 1", "kind": "worker", "state": "resting", "restarts": 3, "left": 2.0,
         "last_end": {"cause": "signal", "sentence": "Process 12 died of SIGKILL (not sent by the supervisor).", "ago": 3}},
        {"name": "worker 2", "kind": "worker", "state": "waiting", "waits_on": "a lock", "pid": 13, "record": 5, "job_kind": "own:store", "elapsed": 1},
        {"name": "maintenance", "kind": "maintenance", "state": "idle", "pid": 14},
    ],
}  # fmt: skip


def say(dsn, number, facts, age=0.0):
    send(dsn, "UPDATE jobherd.supervisors SET facts = %s, facts_at = clock_timestamp() - make_interval(secs => %s) WHERE id = %s RETURNING 1",
         json.dumps(facts), age, number)  # fmt: skip


def test_page_without_supervisors_shows_how_to_start_one(page):
    answer = page.get("/fleet")
    assert answer.status_code == 200
    assert "jobherd run --handlers" in answer.text


def test_each_supervisor_is_shown_with_its_child_processes(page, database):
    number, silent, expired = (
        supervisor(database),
        supervisor(database, host="beta"),
        supervisor(database, host="gamma", lease=-7200),
    )
    say(database, number, FACTS)
    text = page.get("/fleet").text
    for wanted in (
        "alpha, process 77", "computing", "mail:receipt", 'href="/jobs/17"', "3.2 s", "40 %", "half way", "98 %", "114 MiB", "1,203",
        "attempt 2 of 5", "resting", "restarts in 2.0 s", "on a lock", "record 5", "and 3 claimed, not started", "reloading", "mail, media",
        "worker 1, 1 h 30 min ago:", "Process 12 died of SIGKILL (not sent by the supervisor).", 'href="/jobs/16"',
        "beta, process 77", "It has not reported its child processes yet.", "gamma", "its lease expired 2 h ago",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert text.count('value="drain"') == 2, "a supervisor with an expired lease must have no buttons"
    assert silent
    assert expired


def test_remote_workers_are_shown_under_their_supervisor(page, database):
    number, gone = supervisor(database), supervisor(database, host="beta")
    send(database, "SELECT jobherd.enqueue('image:resize', '{}')")
    job = claim(database, remote_worker(database, number))
    remote_worker(database, number, name="<gpu-2>", ago=400)
    remote_worker(database, gone, name="gpu-3")
    send(database, "DELETE FROM jobherd.supervisors WHERE id = %s", gone)
    under, orphans = page.get("/fleet").text.split("Remote workers without a gateway</h2>")
    for wanted in (
        f"Remote workers of supervisor {number}",
        "gpu-1",
        "connected",
        "node/1.2",
        f'href="/jobs/{job}"',
        "&lt;gpu-2&gt;",
        "away",
    ):
        assert wanted in under, wanted
    assert "gpu-3" not in under
    assert "gpu-3" in orphans
    text = page.get(f"/jobs/{job}").text
    assert re.search(r"<dt>Runs on</dt><dd><a href=\"[^\"]*/fleet\">gpu-1 via alpha</a></dd>", text)
    assert "The job runs on a remote worker" in text
    assert ">Profile</button>" not in text, "its process cannot be inspected"
    assert ">Cancel</button>" in text


def test_viewed_page_requests_a_report_only_from_supervisors_that_need_it(database):
    number, expired = supervisor(database), supervisor(database, lease=-7)

    def look():
        async def asked():
            db = Database(database)
            await fleet.ask(db)
            await db.close()

        finish(asked())

    look()
    look()
    asked = "SELECT supervisor, name, arguments, asked_by FROM jobherd.fleet_commands ORDER BY id"
    assert send(database, asked) == [(number, "report", {"for": 10.0}, "dashboard")], (
        "expected one request, however many viewers there are"
    )
    say(database, number, FACTS | {"watched": LIMIT})
    send(database, "DELETE FROM jobherd.fleet_commands RETURNING 1")
    look()
    assert send(database, asked) == [], "the supervisor still publishes its report"
    say(database, number, FACTS | {"watched": 9.0}, age=7.0)
    look()
    assert len(send(database, asked)) == 1
    assert expired


def answering(dsn, answer, error):
    """Start a thread that answers the next fleet command like a supervisor."""

    def run():
        with psycopg.connect(dsn, autocommit=True) as connection:
            until = time.monotonic() + LIMIT
            while time.monotonic() < until:
                done = connection.execute(
                    "UPDATE jobherd.fleet_commands SET taken_at = clock_timestamp(), done_at = clock_timestamp(), answer = %s, error = %s"
                    " WHERE done_at IS NULL AND name <> 'report'", (answer, error),
                )  # fmt: skip
                if done.rowcount:
                    return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("order", "answer", "error", "said"),
    [
        ("add", '{"workers": 3}', None, "starts one more worker; 3 workers are wanted now."),
        ("remove", '{"workers": 1}', None, "stops one worker; 1 worker is wanted now."),
        ("drain", '{"workers": 2, "running": 1}', None, "exits when its running jobs have ended."),
        ("remove", None, "it has no worker left", "rejects the fleet command: it has no worker left."),
        ("reload", '{"problem": "the settings do not load"}', None, "reloads its code, but the settings do not load"),
    ],
)
def test_fleet_command_is_sent_audited_and_its_answer_shown(page, database, order, answer, error, said):
    number = supervisor(database)
    thread = answering(database, answer, error)
    shown = page.act("/fleet/action", follow=True, supervisor=number, order=order)
    thread.join()
    assert said in shown.text
    assert f"Supervisor {number}" in shown.text
    assert send(database, "SELECT actor, action, target ->> 'supervisor' FROM jobherd.audit") == [
        ("dashboard", order, str(number))
    ]


def test_fleet_command_that_no_supervisor_takes_is_withdrawn(page, database, monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE", 0.1)
    number = supervisor(database)
    shown = page.act("/fleet/action", follow=True, supervisor=number, order="add")
    assert "did not answer within 100 ms: the fleet command is withdrawn and will not be executed." in shown.text
    assert send(database, "SELECT error FROM jobherd.fleet_commands WHERE name = 'add'") == [
        ("withdrawn: the supervisor did not take it in time",)
    ]


@pytest.mark.parametrize(
    "fields", [{"supervisor": "1", "order": "dance"}, {"supervisor": "x", "order": "add"}, {"order": "add"}]
)
def test_invalid_fleet_command_is_rejected(page, database, fields):
    assert "That is not a fleet command" in page.act("/fleet/action", follow=True, **fields).text
    assert send(database, "SELECT count(*) FROM jobherd.fleet_commands") == [(0,)]


def test_fleet_command_for_a_missing_supervisor_shows_an_error(page):
    assert "supervisor 999 is not there" in page.act("/fleet/action", follow=True, supervisor=999, order="add").text


def test_read_only_page_has_no_buttons_and_rejects_fleet_commands(database):
    from tests.dashboard.support import Page

    say(database, number := supervisor(database), FACTS)
    with Page(application(database, read_only=True)) as page:
        assert "/fleet/action" not in page.get("/fleet").text
        assert page.act("/fleet/action", supervisor=number, order="add").status_code == 403


@pytest.mark.parametrize("text", W01)
def test_page_escapes_the_status_report_of_a_supervisor(page, database, text):
    number = supervisor(database, host=text)
    odd = dict.fromkeys(FACTS["children"][0], text) | {
        "progress": {"fraction": text, "note": text},
        "last_end": {"cause": text, "sentence": text},
    }
    say(
        database,
        number,
        {
            **FACTS,
            "run_state": text,
            "queues": [text],
            "children": [odd, text, None, {}],
            "ends": [{"name": text, "sentence": text}, 7],
        },
    )
    answer = page.get("/fleet")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "<img src=x" not in answer.text
    assert "<svg/onload" not in answer.text


@pytest.mark.parametrize(
    "facts",
    [[], "x", 7, {"children": 7, "ends": "x", "queues": {"a": 1}, "wanted": "many"}, {"children": [{"cpu": "x"}]}],
)
def test_status_report_of_another_version_does_not_break_the_page(page, database, facts):
    say(database, supervisor(database), facts)
    assert page.get("/fleet").status_code == 200
