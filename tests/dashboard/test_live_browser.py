"""Live updates in a browser: no reload, no loss of the user's input, through an outage and a restart."""

from __future__ import annotations

import itertools
import re

import psycopg
import pytest
from jinja2 import ChoiceLoader, DictLoader
from playwright.sync_api import expect
from starlette.routing import Route

import jobherd.workers.dashboard
from jobherd import Client
from jobherd.workers.dashboard import live_updates
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.render import environment, page
from tests.dashboard.support import W01
from tests.support.postgres import Cluster
from tests.workers.web.support import Web

TEMPLATES = {
    "live_test.html": """{% extends "base.html" %}{% block title %}Live{% endblock %}{% block main %}<h1>Live</h1>
<div data-live="test">{% include "live_test_part.html" %}</div><div id="still">{{ number }}</div>{% endblock %}""",
    "live_test_part.html": """<p id="number">{{ number }}</p><p id="text">{{ text }}</p><details id="more"><summary>More</summary>{{ number }}</details>
<label>Tick <input type="checkbox" id="tick"></label><label>Say <input id="say"></label>{{ at|when }}
{% if may_act %}{{ ui.button(url_for("live-test-action"), "Do it", csrf_token) }}{% endif %}""",
}

PATIENCE = 60_000
"""Milliseconds after which a wait fails the test."""


@pytest.fixture
def site(monkeypatch):
    """Adds a page whose live part counts its queries. Yields the forms that its action received."""
    from datetime import UTC, datetime

    numbers = itertools.count(1)
    done = []

    async def ask(database, _argument):
        await database.rows("observe/show_time")
        return {"number": next(numbers), "text": " ".join(W01), "at": datetime.now(UTC)}

    async def show(request):
        return page(request, "live_test.html", number=0, text="", at=None)

    @action
    async def act(request, form):
        done.append(dict(form))
        return Done("It is done.")

    original = jobherd.workers.dashboard.application

    def application(*args, **options):
        app = original(*args, **options)
        app.router.routes[:0] = [
            Route("/live-test", show),
            Route("/live-test/action", act, methods=["POST"], name="live-test-action"),
        ]
        app.state.hub._topics["test"] = live_updates.Topic("test", "live_test_part.html", ask, 0.1)
        return app

    monkeypatch.setattr(jobherd.workers.dashboard, "application", application)
    made = environment()
    monkeypatch.setattr(made, "loader", ChoiceLoader([DictLoader(TEMPLATES), made.loader]))
    yield done
    made.cache.clear()


def number(tab):
    return int(tab.locator("#number").inner_text())


def wait_beyond(tab, least):
    tab.wait_for_function("least => Number(document.querySelector('#number').textContent) > least", arg=least)


def test_live_update_keeps_the_focus_inputs_and_open_details(browser, database, site):
    with Web(database, dashboard=True) as web, browser.new_context(base_url=f"http://127.0.0.1:{web.port}") as context:
        complaints = []
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        tab.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
        tab.goto("/live-test")
        tab.evaluate("window.same = true")
        wait_beyond(tab, 0)
        tab.locator("#more summary").click()
        tab.check("#tick")
        tab.fill("#say", "half a wo")
        wait_beyond(tab, number(tab) + 2)
        assert tab.evaluate("document.querySelector('#more').open && document.querySelector('#tick').checked")
        assert tab.evaluate("document.activeElement.id") == "say"
        assert tab.input_value("#say") == "half a wo"
        assert tab.evaluate("window.same") is True
        assert tab.locator("#still").inner_text() == "0"
        assert tab.locator("#text").inner_text().split() == " ".join(W01).split()
        assert "UTC" not in tab.locator("main time").inner_text()
        # The CSRF token must come from the page, since all viewers get the same fragment.
        tab.get_by_role("button", name="Do it").click()
        tab.get_by_text("It is done.").wait_for()
        assert len(site) == 1
        assert complaints == []


def test_overview_and_kinds_follow_a_job_to_the_charts_without_a_reload(browser, herd):
    """Takes long, since the rollup is filled every 10 s and queried as often."""
    with herd.window(browser) as overview, herd.window(browser) as kinds:
        herd.enqueue("mail:receipt", {"order_id": 1})  # without a job, the overview has other contents
        overview.goto("/")
        kinds.goto("/kinds?sort=kind")
        for tab in (overview, kinds):
            tab.evaluate("window.same = true")
        job = herd.enqueue("video:wait", {"name": "overview"})
        arrival = herd.gate.wait_arrival("overview")
        expect(overview.get_by_role("region", name="Running jobs").get_by_role("link", name=f"#{job}")).to_be_visible(
            timeout=PATIENCE
        )
        arrival.open()
        expect(overview.get_by_role("region", name="Running jobs").get_by_role("link", name=f"#{job}")).to_have_count(
            0, timeout=PATIENCE
        )
        failed = herd.enqueue("card:charge", {"card": "4000", "amount": 1})
        failures = overview.get_by_role("region", name="What failed, by kind and code")
        expect(failures.get_by_role("row").filter(has_text="card:charge")).to_contain_text(
            f"#{failed}", timeout=PATIENCE
        )
        row = kinds.get_by_role("row").filter(has_text="card:charge")
        expect(row.get_by_role("link", name=re.compile("^[1-9]")).first).to_be_visible(timeout=PATIENCE)
        assert overview.evaluate("window.same") and kinds.evaluate("window.same"), "a page was reloaded"


def test_page_of_a_deleted_job_shows_a_note_and_stops_its_live_updates(tab, herd):
    job = herd.enqueue("mail:receipt", {"order_id": 9})
    with Client(herd.dsn) as client:
        client.wait(job, timeout="60s")
    tab.goto(f"/jobs/{job}")
    expect(tab.locator("main [data-live]")).to_have_count(2)
    with psycopg.connect(herd.dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM jobherd.jobs WHERE id = %s", [job])
    expect(tab.get_by_role("heading", name=f"Job {job} is gone")).to_be_visible(timeout=PATIENCE)
    expect(tab.locator("main [data-live]")).to_have_count(0, timeout=PATIENCE)
    assert tab.locator("#trouble").is_hidden()


def test_outage_shows_a_banner_and_updates_continue_after_a_restart(browser, site):
    with Cluster() as own:
        first = Web(own.dsn(), dashboard=True)
        with browser.new_context() as context:
            with first as web:
                tab = context.new_page()
                tab.goto(f"http://127.0.0.1:{web.port}/live-test")
                wait_beyond(tab, 0)
                own.stop("immediate")
                trouble = tab.locator("#trouble")
                trouble.get_by_text("has not answered since").wait_for()
                own.start()
                trouble.wait_for(state="hidden")
                wait_beyond(tab, number(tab))
            seen = number(tab)
            with Web(own.dsn(), dashboard=True, http=("127.0.0.1", web.port)):
                wait_beyond(tab, seen)
                trouble.wait_for(state="hidden")
