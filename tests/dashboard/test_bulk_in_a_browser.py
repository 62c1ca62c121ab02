"""Bulk actions in a browser, with a real supervisor: selection, confirmation and progress. Also the list's filter."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from jobherd import Client
from tests.dashboard.test_look import RULES, violations
from tests.support.patience import LIMIT


def failed(herd, many):
    """Enqueue jobs that fail, wait until they have failed, and return their ids."""
    made = [herd.enqueue("report:build", {"year": 1900 + number}) for number in range(many)]
    wait_failed(herd, made)
    return made


def wait_failed(herd, jobs):
    """Wait until each of them has failed."""
    with Client(herd.dsn) as client:
        for job in jobs:
            assert client.wait(job, timeout=LIMIT)["state"] == "failed"


def test_ticked_jobs_are_retried_and_the_page_shows_the_progress(tab, herd):
    made = failed(herd, 12)
    tab.goto("/jobs?state=failed&kind=report%3Abuild&size=200")
    row = tab.locator(f"#job-{made[-1]}")
    expect(row).to_contain_text("there are no figures of 1911")
    expect(row.locator(".state")).to_contain_text("failed")
    tab.get_by_label("Tick all on this page").check()
    expect(tab.locator("tbody input:checked")).to_have_count(tab.locator("tbody tr").count())
    tab.get_by_role("button", name="Retry…").click()
    expect(tab.locator("#ask h2")).to_contain_text(re.compile(r"Retry: \d+ jobs"))
    tab.get_by_label("Reason, for the audit log").fill("the figures were found")
    tab.get_by_role("button", name=re.compile(r"Retry \d+ jobs")).click()
    tab.wait_for_url(re.compile(r"/jobs/bulk/\d+"))
    # The live fragment shows the end without a reload.
    expect(tab.locator(".state-completed")).to_be_visible()
    assert int(tab.locator("#bulk-done").inner_text()) >= 12
    expect(tab.locator(".facts")).to_contain_text("the figures were found")
    wait_failed(herd, made)  # they fail again, and the next test deletes all failed jobs


def test_row_is_ticked_by_keyboard_and_all_matching_jobs_are_deleted(tab, herd):
    failed(herd, 3)
    tab.goto("/jobs?state=failed&kind=report%3Abuild")
    tab.keyboard.press("j")
    [later] = failed(herd, 1)
    # The list has been updated, and the keyboard position must still be at the same row.
    expect(tab.locator(f"#job-{later}")).to_be_visible()
    tab.keyboard.press("x")
    expect(tab.locator("tbody input:checked")).to_have_count(1)
    tab.locator("input[name=all]").check()
    tab.get_by_role("button", name="Delete…").click()
    expect(tab.locator("#ask h2")).to_contain_text("Delete:")
    tab.get_by_role("button", name=re.compile(r"Delete \d+ jobs")).click()
    expect(tab.locator(".state-completed")).to_be_visible()
    tab.goto("/jobs?state=failed&kind=report%3Abuild")
    expect(tab.locator(".empty")).to_contain_text("No job matches this filter")


def test_bulk_actions_work_without_scripts_and_are_accessible(browser, herd):
    made = failed(herd, 2)
    with herd.window(browser, java_script_enabled=False) as tab:
        tab.goto("/jobs?state=failed&kind=report%3Abuild")
        tab.get_by_label(f"Job {made[0]}", exact=True).check()
        tab.get_by_role("button", name="Delete…").click()
        tab.get_by_role("button", name="Delete 1 job").click()
        shown = tab.url
        while not tab.locator(".state-completed").count():
            tab.goto(shown)
        assert tab.locator("#bulk-done").inner_text() == "1"
    with herd.window(browser, bypass_csp=True) as tab:
        tab.goto("/jobs?state=failed&kind=report%3Abuild")
        tab.get_by_label(f"Job {made[1]}", exact=True).check()
        tab.get_by_role("button", name="Retry…").click()
        assert violations(tab, RULES) == []
        tab.goto(shown)
        assert violations(tab, RULES) == []


def test_rows_do_not_move_under_the_pointer_and_a_button_counts_newer_jobs(tab, herd):
    first = herd.enqueue("image:thumbnail", {"path": "a.png"}, delay="5h")
    tab.goto("/jobs?kind=image%3Athumbnail&state=scheduled")
    row = tab.locator(f"#job-{first}")
    row.hover()
    later = [herd.enqueue("image:thumbnail", {"path": "b.png"}, delay="5h") for _ in range(2)]
    pill = tab.get_by_role("button", name="2 newer")
    expect(pill).to_be_visible()
    expect(tab.locator(f"#job-{later[0]}")).to_have_count(0)
    pill.click()
    expect(tab.locator(f"#job-{later[1]}")).to_be_visible()
    expect(pill).to_be_hidden()


def test_action_bar_counts_the_selection_and_is_disabled_without_one(tab, herd):
    job = herd.enqueue("image:thumbnail", {"path": "c.png"}, delay="5h")
    tab.goto("/jobs?kind=image%3Athumbnail&state=scheduled")
    retry = tab.get_by_role("button", name="Retry…")
    expect(retry).to_be_disabled()
    tab.get_by_label(f"Job {job}", exact=True).check()
    expect(tab.locator("#chosen")).to_have_text("1 selected")
    expect(retry).to_be_enabled()
    tab.get_by_label(f"Job {job}", exact=True).uncheck()
    expect(retry).to_be_disabled()


def test_filter_form_sends_the_viewers_time_zone(browser, herd):
    with herd.window(browser, timezone_id="Asia/Tokyo") as tab:
        tab.goto("/jobs")
        tab.fill("#filter-since", "yesterday 09:00")
        tab.get_by_role("button", name="Filter").click()
        tab.wait_for_url("**tz=Asia%2FTokyo**")


def test_time_picker_fills_in_a_time_in_the_viewers_zone(browser, herd):
    with herd.window(browser, timezone_id="Asia/Tokyo") as tab:
        tab.goto("/jobs")
        tab.evaluate(
            "() => { HTMLInputElement.prototype.showPicker = function () { this.dataset.shown = this.value || 'empty'; }; }"
        )
        picker = tab.locator(".timed:has(#filter-since) input[type=datetime-local]")
        button = tab.get_by_role("button", name="Pick a time for “Since”")
        tab.fill("#filter-since", "yesterday")
        button.click()
        expect(picker).to_have_attribute("data-shown", "empty")
        picker.fill("2026-01-31T08:00")
        expect(tab.locator("#filter-since")).to_have_value("2026-01-31 08:00")
        button.click()
        expect(picker).to_have_attribute("data-shown", "2026-01-31T08:00")
        tab.press("#filter-since", "Enter")
        tab.wait_for_url("**since=2026-01-31+08%3A00&**tz=Asia%2FTokyo**")
        expect(tab.locator(".error")).to_have_count(0)


def test_time_picker_is_hidden_without_scripts(browser, herd):
    with herd.window(browser, java_script_enabled=False) as tab:
        tab.goto("/jobs")
        expect(tab.locator(".timed button:visible, .timed [type=datetime-local]:visible")).to_have_count(0)
