"""Stacks and profiles of a running job: the fleet command that requests them, and how each answer is shown."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.workers.dashboard import application
from jobherd.workers.inspect import flamegraph
from jobherd.workers.inspect.stacks import MAIN, Frame
from tests.dashboard.support import W01, Page

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

    from tests.dashboard.support import Shown

MADE_UP = """
WITH s AS (INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, lease_until)
           VALUES ('web1', 'm', 1, 1, '0', clock_timestamp() + interval '1 h') RETURNING id),
     c AS (INSERT INTO jobherd.children (supervisor, incarnation, slot, kind, pid, pid_started, backend_started)
           SELECT id, 1, 0, 'worker', 2, 2, now() FROM s RETURNING id),
     j AS (DELETE FROM jobherd.ready r WHERE id = %s RETURNING r.queue, r AS whole)
INSERT INTO jobherd.running (child, token, queue, jobs) SELECT c.id, 9, j.queue, ARRAY[j.whole] FROM c, j
"""


@pytest.fixture
def running(database: str):
    """A connection, and a job that runs under a supervisor that exists only as a row."""
    with psycopg.connect(database, autocommit=True) as conn:
        job = conn.execute("SELECT jobherd.enqueue('image:resize', '{}')").fetchone()[0]
        conn.execute(MADE_UP, (job,))
        yield conn, job


def ask(page: Page, job: int, what: str, **fields: object) -> str:
    answer = page.act(f"/jobs/{job}/inside/action", do=what, **fields)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def reply(conn, document, error=None):
    conn.execute(
        "UPDATE jobherd.fleet_commands SET done_at = now(), answer = %s::jsonb, error = %s",
        (None if document is None else json.dumps(document), error),
    )


ABOUT = {"token": 9, "kind": "image:resize", "host": "web1", "worker": 0, "pid": 4711, "runs_for": 12.0}


def test_stack_is_requested_awaited_and_shown_with_escaped_texts(page: Page, running):
    conn, job = running
    place = ask(page, job, "stack")
    name, arguments = conn.execute("SELECT name, arguments FROM jobherd.fleet_commands").fetchone()
    assert (name, arguments["job"], set(arguments)) == ("stack", job, {"job", "child"})
    waiting = page.get(place)
    assert (waiting.status_code, waiting.headers["refresh"]) == (200, "2")
    assert 'data-live="inside:' in waiting.text
    frames = [[text, f"/srv/{text}.py", 41] for text in W01]
    task = {"tid": 4711, "name": W01[0], "state": "waits", "processor": 11.0, "waits_in": "hrtimer_nanosleep"}
    reply(
        conn,
        {
            **ABOUT,
            "job": job,
            "took": 0.01,
            "tasks": [task],
            "threads": [{"name": MAIN, "current": True, "cut": True, "frames": frames}],
        },
    )
    shown = page.get(place)
    assert shown.status_code == 200
    assert "refresh" not in shown.headers
    assert "hrtimer_nanosleep" in shown.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.text
    assert "<script>alert" not in shown.text
    reply(
        conn,
        {
            **ABOUT,
            "job": job,
            "threads": [],
            "tasks": [task],
            "silent": "process 4711 does not report its stack: it is stopped",
        },
    )
    assert "it is stopped" in page.get(place).text


def test_profile_is_drawn_as_a_flame_graph_and_can_be_saved(page: Page, running):
    conn, job = running
    place = ask(page, job, "profile")
    counts = {
        (MAIN, (Frame("send", "/srv/mail.py", 7), Frame("<b>", "/srv/a.py", 3))): 30,
        (MAIN, (Frame("send", "/srv/mail.py", 7),)): 10,
    }
    profile = {"rate": 50, "seconds": 0.8, "samples": 40, "missed": 2, "processor": 0.5, "ended": f"job {job} ended"}
    reply(conn, {**ABOUT, "job": job, **profile, **flamegraph.document(counts, 10_000)})
    shown = page.get(place).text
    svg = re.search(r"<svg class=\"flame\".*?</svg>", shown, re.DOTALL)[0]
    assert len(ET.fromstring(svg).findall("g")) == 4
    assert "style=" not in svg, "the content security policy forbids style attributes"
    assert "75 %" in shown
    assert "2 could not be taken" in shown
    assert f"it ended early: job {job} ended" in shown
    saved = page.get(f"{place}/profile.svg")
    assert saved.headers["content-type"] == "image/svg+xml"
    assert saved.headers["content-disposition"] == f'attachment; filename="profile-{job}.svg"'
    ET.fromstring(saved.text)


def test_page_stops_waiting_for_a_missing_answer(page: Page, running):
    conn, job = running
    place = ask(page, job, "profile", seconds=60)
    conn.execute("UPDATE jobherd.fleet_commands SET asked_at = asked_at - interval '80 s'")
    assert "refresh" in page.get(place).headers, "a profile of 60 s must still be awaited after 80 s"
    conn.execute("UPDATE jobherd.fleet_commands SET asked_at = asked_at - interval '11 s'")
    silent = page.get(place)
    assert "refresh" not in silent.headers
    assert "data-live" not in silent.text.partition("<main")[2]
    assert "has not answered" in silent.text


def test_invalid_requests_are_rejected_and_answers_about_other_jobs_are_not_shown(page: Page, running):
    conn, job = running
    place = ask(page, job, "stack")
    reply(conn, None, "job 7 has not started")
    assert "job 7 has not started" in page.get(place).text
    order = place.rpartition("/")[2]
    assert page.get(f"/jobs/{job + 1}/inside/{order}").status_code == 404
    assert page.get(f"/jobs/{job}/inside/{'9' * 30}").status_code == 404
    assert page.get(f"{place}/profile.svg").status_code == 404
    assert page.act(f"/jobs/{job}/inside/action", do="kill").status_code == 400
    for wrong in ("0", "61", "x", "1e1", "0000000059999"):
        assert page.act(f"/jobs/{job}/inside/action", do="profile", seconds=wrong).status_code == 400, wrong
    assert page.act("/jobs/999999/inside/action", do="stack").status_code == 404
    waits = conn.execute("SELECT jobherd.enqueue('image:resize', '{}')").fetchone()[0]
    assert (
        f"Job {waits} is not running: it is ready."
        in page.act(f"/jobs/{waits}/inside/action", follow=True, do="stack").text
    )
    conn.execute("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s'")
    assert "lease has expired" in page.act(f"/jobs/{job}/inside/action", follow=True, do="stack").text
    assert conn.execute("SELECT count(*) FROM jobherd.fleet_commands").fetchone()[0] == 1


def test_job_of_a_remote_worker_cannot_be_inspected(page: Page, running):
    conn, job = running
    conn.execute("UPDATE jobherd.supervisors SET via = 77, attached = 1, principal = 'team-a'")
    conn.execute("UPDATE jobherd.children SET kind = 'remote'")
    said = page.act(f"/jobs/{job}/inside/action", follow=True, do="stack").text
    assert (
        f"Job {job} runs on the remote worker web1: its process cannot be inspected from here. Use a tool such as py-spy"
        in said
    )
    assert not conn.execute("SELECT FROM jobherd.fleet_commands").fetchall()


def test_browser_shows_the_stack_and_flame_graph_of_a_running_job_when_they_arrive(herd: Shown, tab: Tab, tmp_path):
    job = herd.enqueue("video:wait", {"name": "inside"})
    arrival = herd.gate.wait_arrival("inside")
    tab.goto(f"/jobs/{job}")
    tab.get_by_role("button", name="Stack").click()
    tab.get_by_text("at_gate").first.wait_for()
    with Page(application(herd.dsn)) as client:
        tab.goto(ask(client, job, "profile", seconds=1))
        tab.get_by_text("Where most of the time went").wait_for()
    assert tab.locator("svg.flame g title").first.text_content().startswith("all: 100.0% of all")
    assert "at_gate" in tab.locator("svg.flame").text_content()
    with tab.expect_download() as saving:
        tab.get_by_role("link", name="Save the picture").click()
    saving.value.save_as(tmp_path / "saved.svg")
    tab.goto((tmp_path / "saved.svg").as_uri())
    boxes = tab.locator("g.b")
    shown = boxes.count()
    tab.locator("g.b", has_text="wait (").first.click()
    assert 0 < tab.locator("g.b:visible").count() <= shown
    assert float(tab.locator("g.b", has_text="wait (").first.locator("rect").get_attribute("width")) > 1100, (
        "a click must widen the box"
    )
    arrival.open()
