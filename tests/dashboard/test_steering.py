"""The pages of the fleet and of queues in a browser, with a real supervisor: live updates and buttons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

    from tests.dashboard.support import Shown


def test_fleet_page_updates_without_a_reload_and_its_buttons_work(tab: Tab, herd: Shown):
    tab.goto("/fleet")
    tab.evaluate("window.unchanged = true")
    job = herd.enqueue("video:wait", {"name": "fleet"})
    arrival = herd.gate.wait_arrival("fleet")
    row = tab.locator("tr", has=tab.get_by_role("link", name=f"#{job}", exact=True))
    row.wait_for()
    row.get_by_text("25 %").wait_for()
    row.get_by_text("waiting").wait_for()
    row.get_by_text(str(arrival.pid), exact=True).wait_for()
    assert tab.evaluate("window.unchanged"), "the page was reloaded"
    arrival.open()
    row.wait_for(state="detached")
    tab.get_by_role("button", name="Add a worker").click()
    tab.get_by_text("starts one more worker; 3 workers are wanted now.").wait_for()
    tab.get_by_role("rowheader", name="worker 2").wait_for()
    tab.get_by_role("button", name="Remove a worker").click()
    tab.get_by_text("stops one worker; 2 workers are wanted now.").wait_for()
    tab.get_by_role("rowheader", name="worker 2").wait_for(state="detached")


def test_queue_is_paused_with_the_form_and_resumed_with_the_button_in_its_row(tab: Tab, herd: Shown):
    job = herd.enqueue("mail:receipt", {"order_id": 1}, delay="1h")
    tab.goto("/queues?queue=mail")
    tab.get_by_label("Reason, shown to users").fill("the provider is down")
    tab.locator("section form button[value=pause]").click()
    tab.get_by_text("Queue mail is paused.").wait_for()
    row = tab.locator("tr", has=tab.get_by_role("link", name="mail", exact=True))
    row.get_by_text("the provider is down").wait_for()
    row.get_by_role("button", name="Resume").click()
    tab.get_by_text("Queue mail is resumed.").wait_for()
    tab.goto("/audit")
    tab.locator("tr", has_text="resume").first.get_by_text("queue mail").wait_for()
    tab.locator("tr", has_text="queue mail").filter(has_text="the provider is down").wait_for()
    assert job


@pytest.mark.parametrize("scripts", [True, False])
def test_enter_key_in_the_form_of_queues_changes_nothing(browser: Browser, herd: Shown, scripts: bool):
    herd.enqueue("mail:receipt", {"order_id": 2}, delay="1h", queue="untouched")
    with herd.window(browser, java_script_enabled=scripts, viewport={"width": 390, "height": 844}) as tab:
        tab.goto("/queues?queue=untouched#queue-untouched")
        top = tab.locator("tr:target").bounding_box()["y"]
        assert 0 <= top < 844, "the row of the link is on the screen"
        assert tab.evaluate("document.activeElement.tagName") == "BODY", "no field has the focus"
        tab.press("#name", "Enter")
        tab.press("#max_running", "Enter")
        tab.locator("section form button[value=resume]").click()
        tab.get_by_text("Queue untouched was not paused.").wait_for()
