"""The page of one job in a browser, with a real supervisor: live updates and buttons."""

from __future__ import annotations

import re
import time

from playwright.sync_api import expect

from jobherd import Client
from jobherd.workers.dashboard import application
from tests.dashboard.support import Page
from tests.support.patience import LIMIT


def test_page_follows_a_job_from_start_to_end_without_a_reload(tab, herd):
    job = herd.enqueue("video:wait", {"name": "followed"})
    arrival = herd.gate.wait_arrival("followed")
    tab.goto(f"/jobs/{job}")
    tab.evaluate("window.loadedOnce = true")
    state = tab.locator("main .state").first
    expect(state).to_contain_text("running")
    expect(tab.get_by_role("progressbar")).to_have_attribute("value", "0.2500")
    expect(tab.get_by_text("frame 250").first).to_be_visible()
    expect(tab.locator("pre.log")).to_contain_text("encoding followed")
    expect(tab.locator("pre.log")).to_contain_text("a line that is only printed")
    expect(tab.get_by_role("button", name="Cancel")).to_be_visible()
    tab.get_by_role("button", name="Stack").click()
    expect(tab.locator("main")).to_contain_text("at_gate")
    tab.goto(f"/jobs/{job}")
    tab.evaluate("window.loadedOnce = true")
    arrival.open()
    expect(state).to_contain_text("completed")
    expect(tab.get_by_role("heading", name=re.compile("Attempt 1 .*completed"))).to_be_visible()
    expect(tab.get_by_role("button", name="Run again")).to_be_visible()
    assert tab.evaluate("window.loadedOnce"), "the page was reloaded"
    assert tab.locator("svg.life rect").count() >= 2
    tab.get_by_role("button", name="Run again").click()  # a form in the live part, with the page's CSRF token
    tab.evaluate("document.querySelector('form[data-confirm]').remove()")  # as a live update can do
    tab.locator("#ask").get_by_role("button", name="Run again").click()  # the confirmation, since effects repeat
    expect(tab.locator("[role=status].good")).to_contain_text(f"Job {job} is ready to run again")
    herd.gate.wait_arrival("followed").open()
    expect(tab.locator("main .state").first).to_contain_text("completed")


def test_failed_job_is_explained_edited_and_run_again(tab, herd):
    job = herd.enqueue("report:build", {"year": 1999})
    with Client(herd.dsn) as client:
        assert client.wait(job, timeout=LIMIT)["state"] == "failed"
    tab.goto(f"/jobs/{job}")
    expect(tab.locator("main .why").first).to_contain_text("Failed at")
    expect(tab.locator("main .why").first).to_contain_text("there are no figures of 1999")
    expect(tab.locator("main")).to_contain_text("building the report of 1999")
    tab.get_by_role("link", name="Edit and run again").click()
    tab.get_by_label("Payload, as JSON").fill('{"year": 2020}')
    tab.get_by_role("button", name="Run with this payload").click()
    expect(tab.locator("[role=status].good")).to_contain_text(f"Job {job} runs again as job")
    expect(tab.locator("main .state").first).to_contain_text("completed")
    expect(tab.get_by_role("heading", name="Result")).to_be_visible()
    tab.locator("main .family").get_by_role("link", name=str(job), exact=True).click()
    expect(tab.locator("main .state").first).to_contain_text("failed")


def test_page_on_another_host_shows_the_output_of_a_running_job(herd):
    job = herd.enqueue("video:wait", {"name": "far"})
    arrival = herd.gate.wait_arrival("far")
    until = time.monotonic() + LIMIT
    with Page(application(herd.dsn)) as page:  # has no status boards, like a dashboard on another host
        first = page.get(f"/jobs/{job}").text
        assert "The job runs on another host, and the dashboard has requested its output" in first
        while "encoding far" not in page.get(f"/jobs/{job}").text:
            assert time.monotonic() < until, "the supervisor has not published the output"
    arrival.open()


def test_job_page_links_to_the_previous_and_next_job_and_back_to_the_list(tab, herd):
    first, second, third = [herd.enqueue("image:thumbnail", {"path": "n.png"}, delay="6h") for _ in range(3)]
    path = "/jobs?kind=image%3Athumbnail&state=scheduled"
    tab.goto(path)
    tab.locator(f"#job-{second}").get_by_role("link", name=str(second)).click()
    tab.get_by_role("link", name="Next →").click()
    tab.wait_for_url(f"**/jobs/{first}")
    tab.get_by_role("link", name="← Previous").click()
    tab.get_by_role("link", name="← Previous").click()
    tab.wait_for_url(f"**/jobs/{third}")
    tab.get_by_role("link", name="Back to the list").click()
    tab.wait_for_url(f"**{path}")
