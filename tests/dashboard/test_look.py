"""The pages in a browser, with a real supervisor: accessibility, keyboard, phone layout, charts and dialogs."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import TimeoutError as TooLong
from playwright.sync_api import expect

from jobherd import Client
from tests.support.patience import LIMIT

PAGES = ("/", "/jobs", "/fleet", "/queues", "/schedules", "/kinds", "/errors", "/audit")
AXE = Path(__file__).with_name("axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def job(herd):
    """A job with contents to show."""
    herd.enqueue("mail:receipt", {"order_id": 7})
    return herd.enqueue("report:build", {"year": 2030})


def schedule(herd):
    """Add a schedule with instants of every kind, and a paused one. Return the name of the first."""
    with psycopg.connect(herd.dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT jobherd.schedule('reports', 'report:build', cron => '*/5 8-18 29 FEB *', tz => 'Europe/Berlin')"
        )
        conn.execute("SELECT jobherd.schedule('stopped', 'mail:receipt', every => '1 h')")
        conn.execute(
            "SELECT jobherd.pause_schedule('stopped', 'the mail server is down for some hours', now() + interval '1 day')"
        )
        conn.execute(
            "INSERT INTO jobherd.ticks (schedule, at, since, decided, job, missed, because)"
            " SELECT 'reports', now() - make_interval(mins => n::integer), now() - interval '2 h', decided, CASE WHEN n = 1 THEN 1 END, 3, n"
            "   FROM unnest('{ran,held,missed,overlapped,merged,paused,edited,retired}'::text[]) WITH ORDINALITY AS t (decided, n)"
        )
    return "reports"


@pytest.fixture(scope="module")
def places(herd, job):
    """The paths of all pages, with contents: also failed and running jobs, and forms."""
    with Client(herd.dsn) as client:
        failed = herd.enqueue("report:build", {"year": 1999})
        crashed = herd.enqueue("video:encode")
        for number in (failed, crashed):
            assert client.wait(number, timeout=LIMIT)["state"] == "failed"
    running = herd.enqueue("video:wait", {"name": "looked at"})
    arrival = herd.gate.wait_arrival("looked at")
    jobs = (job, failed, crashed, running)
    reports = schedule(herd)
    narrowed = "/jobs?state=failed&kind=report%3Abuild&since=24h"
    yield (
        *PAGES,
        *(f"/jobs/{number}" for number in jobs),
        f"/jobs/{failed}/edit",
        "/enqueue",
        "/enqueue?kind=report:build",
        narrowed,
        "/jobs?kind=nobody%3Aknows",
        "/kinds/report:build",
        "/kinds/nobody:knows",
        "/figures?window=week",
        f"/schedules/{reports}",
        f"/schedules/{reports}/edit?every=20m",
    )
    arrival.open()


def violations(tab, only):
    """Return the problems that the accessibility checker finds, as texts."""
    tab.evaluate(f"() => {{ {AXE} }}")
    found = tab.evaluate(
        "only => axe.run(document, {runOnly: only, resultTypes: ['violations']}).then(said => said.violations)", only
    )
    return [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize(("scheme", "only"), [("light", RULES), ("dark", ["color-contrast"])])
def test_every_page_passes_the_accessibility_checks(browser, herd, places, scheme, only):
    with herd.window(browser, color_scheme=scheme, bypass_csp=True) as tab:
        for path in places:
            tab.goto(path)
            assert violations(tab, only) == [], path


def test_every_page_fits_a_phone(browser, herd, places):
    with herd.window(browser, viewport={"width": 390, "height": 844}) as tab:
        for path in places:
            tab.goto(path)
            wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels wider than the screen"


def test_no_page_violates_the_security_policy_or_logs_to_the_console(tab, places):
    """The browser logs an error if the policy forbids a script, a style or a picture, and the fixture then fails."""
    for path in places:
        assert tab.goto(path, wait_until="load").status == 200, path
        assert tab.evaluate("document.querySelectorAll('[style], style, script:not([src])').length") == 0, path
        assert tab.locator("h1, h2").count() >= 1, path


def test_every_page_and_the_search_work_without_scripts(browser, herd, job, places):
    with herd.window(browser, java_script_enabled=False) as tab:
        for path in places:
            assert tab.goto(path).status == 200, path
            assert tab.locator("main").inner_text().strip()
        tab.goto("/")
        tab.fill("#search", str(job))
        tab.press("#search", "Enter")
        assert tab.url.endswith(f"/jobs/{job}")


def test_keyboard_shortcuts_reach_pages_rows_and_help(tab, job):
    tab.goto("/")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.keyboard.type(f"#{job}")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/jobs/{job}")
    until = time.monotonic() + LIMIT
    for key, page in (("q", "queues"), ("w", "flows"), ("s", "schedules"), ("a", "audit")):
        while not tab.url.endswith(page):  # the page forgets the first key after 1.5 s
            assert time.monotonic() < until
            tab.keyboard.press("g")
            tab.keyboard.press(key)
            with suppress(TooLong):
                tab.wait_for_url(f"**/{page}", timeout=5000)
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#help").is_visible()
    tab.goto("/jobs")
    rows = tab.locator("main tbody tr").filter(has=tab.locator("a[href]"))
    first = rows.nth(0).locator("a[href]").first.get_attribute("href")
    second = rows.nth(1).locator("a[href]").first.get_attribute("href")
    at = "document.activeElement.querySelector('a[href]').getAttribute('href')"
    for key, there in (("j", first), ("j", second), ("k", first), ("k", first), ("j", second)):
        tab.keyboard.press(key)
        assert tab.evaluate(at) == there, key
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**{second}")
    tab.goto("/queues")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"


def test_chart_shows_values_at_the_pointer_and_with_arrow_keys(tab, job):
    tab.goto("/")
    chart = tab.locator("figure.chart").first
    reading = chart.locator(".reading")
    said = re.compile(r"^[A-Z][a-z]{2} \d\d:\d\d: completed \d+$")
    chart.focus()
    tab.keyboard.press("ArrowLeft")
    expect(reading).to_have_text(said)
    last = reading.inner_text()
    tab.keyboard.press("ArrowLeft")
    expect(reading).not_to_have_text(last)
    expect(reading).to_have_text(said)
    box = chart.locator("svg").bounding_box()
    tab.mouse.move(box["x"] + 1, box["y"] + 1)
    expect(reading).to_have_text(said)
    assert float(chart.locator(".hit").get_attribute("x")) == 0.0, "the pointer must be at the first point"


def test_click_on_a_chart_point_opens_its_jobs_unless_it_has_none(tab, herd):
    with psycopg.connect(herd.dsn, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO jobherd.rollup (at, kind, step, completed, failed, cancelled, expired, started, ran, waited, cpu)"
            " SELECT date_bin('1 hour', now() - interval '3 days', '2000-01-01'), 'test:click', 3600, 4, 0, 0, 0, 4, 1, 1, 1"
        )
    tab.goto("/?window=week&kind=test:click")
    chart = tab.locator("figure.chart").first
    box, wide = chart.locator("svg").bounding_box(), 1 / 168
    place = chart.locator("svg").get_attribute("data-leads").index("1")
    tab.mouse.click(box["x"] + box["width"] * (place - 0.5) * wide, box["y"] + 5)
    expect(chart.locator(".reading")).to_contain_text("completed 0")
    assert "window=week" in tab.url, "a point without jobs must not open a list"
    tab.mouse.click(box["x"] + box["width"] * (place + 0.5) * wide, box["y"] + 5)
    tab.wait_for_url(re.compile(r"/jobs\?state=completed&kind=test%3Aclick&since=[^&]*00Z&until=[^&]*00Z$"))


def test_times_are_in_the_viewers_zone(browser, herd):
    from jobherd.workers.dashboard.render import environment

    page = environment().from_string("{{ at|when('exact') }}")
    from datetime import UTC, datetime

    written = page.render(at=datetime(2026, 1, 2, 23, 30, 5, tzinfo=UTC))
    with herd.window(browser, timezone_id="Asia/Tokyo") as tab:
        tab.goto("/audit")
        tab.evaluate("html => { document.querySelector('main').innerHTML = html }", written)
        tab.evaluate("document.dispatchEvent(new Event('jobherd:localise'))")
        one = tab.locator("main time")
        assert one.inner_text() == "2026-01-03 08:30:05"
        assert one.get_attribute("title") == "2026-01-03 08:30:05.000 Asia/Tokyo"


def test_on_a_phone_the_attention_strip_is_one_row_and_no_table_is_too_wide(browser, herd, places):
    """The strip is less than 80 pixels high, and no table is wider than the screen."""
    with psycopg.connect(herd.dsn, autocommit=True) as conn:
        for number in range(4):
            conn.execute("SELECT jobherd.pause(%s, 'the provider is down')", [f"stopped-{number}"])
            herd.enqueue("mail:receipt", {"order_id": number}, queue=f"stopped-{number}")
    with herd.window(browser, viewport={"width": 390, "height": 844}) as tab:
        for path in ("/", "/jobs", "/fleet", "/queues", "/schedules", "/kinds", "/errors", "/audit"):
            tab.goto(path)
            expect(tab.locator("#attention li")).not_to_have_count(0)
            strip = tab.locator("#attention").bounding_box()
            assert strip["height"] < 80, path
            wide = tab.evaluate(
                "[...document.querySelectorAll('.scroll')].filter(one => !one.closest('details')).filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
            )
            assert wide == [], path
        tab.goto("/")
        items = tab.locator("#attention li")
        assert items.first.is_visible() and not items.nth(1).is_visible()
        tab.locator("#attention summary").click()
        expect(items.nth(1)).to_be_visible()
        said, boxes = tab.evaluate(
            "[parseInt(document.querySelector('#attention summary').textContent),"
            " [...document.querySelectorAll('#attention li')].map(one => one.getBoundingClientRect())]"
        )
        assert said == len(boxes) >= 4
        assert all(box["left"] >= 0 and 0 < box["right"] <= 390 for box in boxes), "every warning must be on the screen"
        tab.goto("/audit")
        here = tab.locator("header nav a[aria-current]").bounding_box()
        assert here["x"] >= 0 and here["x"] + here["width"] <= 390
    with psycopg.connect(herd.dsn, autocommit=True) as conn:
        for number in range(4):
            conn.execute("SELECT jobherd.resume(%s)", [f"stopped-{number}"])


def test_figure_of_the_overview_links_to_its_jobs(tab, job):
    tab.goto("/")
    tab.locator(".stat", has_text="Completed").locator("a").click()
    tab.wait_for_url("**/jobs?state=completed&since=1h")


def test_range_selected_on_a_chart_by_mouse_or_keyboard_opens_its_jobs(tab, job):
    tab.goto("/?window=day")
    chart = tab.locator("figure.chart").first
    whole = chart.locator("svg").bounding_box()
    wide = whole["width"] / 96
    middle = whole["y"] + whole["height"] / 2
    tab.mouse.move(whole["x"] + 20.5 * wide, middle)
    tab.mouse.down()
    tab.mouse.move(whole["x"] + 30.5 * wide, middle, steps=20)
    assert float(chart.locator(".chosen").get_attribute("width")) == pytest.approx(11 * 1000 / 96)
    tab.mouse.up()
    tab.wait_for_url(re.compile(r"/jobs\?state=completed&since=[^&]*Z&until=[^&]*Z$"))
    expect(tab.locator(".problem, .error")).to_have_count(0)
    tab.goto("/?window=day")
    chart.focus()
    for key in ("ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft"):
        tab.keyboard.press(key)
    assert float(chart.locator(".chosen").get_attribute("width")) == pytest.approx(3 * 1000 / 96)
    tab.keyboard.press("Escape")
    expect(chart.locator(".chosen")).to_have_count(0)
    for key in ("Shift+ArrowLeft", "Enter"):
        tab.keyboard.press(key)
    tab.wait_for_url("**/jobs?state=completed&since=*")


def test_chart_of_a_week_has_a_line_at_each_midnight(tab):
    tab.goto("/?window=week")
    line = tab.locator("figure.chart").first.locator(".midnight")
    expect(line).to_have_attribute(
        "d", re.compile("^(M[0-9.]+ 0V100){6,7}$")
    )  # 6 lines if the first point is at midnight


def test_confirmation_is_a_dialog_over_the_page(browser, herd):
    with herd.window(browser, bypass_csp=True) as tab:
        ask_and_act(tab, herd)


def ask_and_act(tab, herd):
    job = herd.enqueue("mail:receipt", {"order_id": 1}, delay="1h")
    tab.goto(f"/jobs/{job}")
    address = tab.url
    tab.get_by_role("button", name="Cancel", exact=True).click()
    ask = tab.locator("#ask")
    expect(ask).to_be_visible()
    ask.get_by_role("button", name="Back").click()
    expect(ask).not_to_be_visible()
    tab.get_by_role("button", name="Cancel", exact=True).click()
    tab.keyboard.press("Escape")
    expect(ask).not_to_be_visible()
    expect(tab.locator("main .state").first).to_contain_text("scheduled")
    tab.get_by_role("button", name="Cancel", exact=True).click()
    ask.get_by_role("button", name="Cancel", exact=True).click()
    expect(tab.locator("main .state").first).to_contain_text("cancelled")
    assert tab.url == address
    tab.goto("/jobs?state=cancelled")
    tab.get_by_label(f"Job {job}", exact=True).check()
    tab.get_by_role("button", name="Delete…").click()
    expect(ask.locator("h2")).to_contain_text("Delete: 1 job")
    assert violations(tab, RULES) == []
    ask.get_by_role("link", name="Back to the jobs").click()
    expect(ask).not_to_be_visible()
    expect(tab.get_by_label(f"Job {job}", exact=True)).to_be_checked()
