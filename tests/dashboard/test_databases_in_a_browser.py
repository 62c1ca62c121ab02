"""`jobherd dashboard` over two databases and an unreachable one, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.cli.rows import send
from tests.cli.shell import LIMIT
from tests.cli.test_dashboard import AWAY, serving
from tests.cli.test_shards import name_of
from tests.dashboard.support import window_at
from tests.dashboard.test_look import RULES, violations

WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def both(cluster, template):
    with cluster.database(template=template) as first, cluster.database(template=template) as second:
        for dsn in (first, second):
            send(dsn, "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', 'mail')")
        yield first, second


@pytest.fixture(scope="module")
def url(both):
    with serving(*both, AWAY) as found:
        yield found


def row_of(tab, name):
    return tab.locator("tbody tr").filter(has=tab.get_by_role("link", name=name, exact=True))


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_list_of_databases_is_accessible_and_updates_without_a_reload(browser, both, url, size, scheme):
    names = [name_of(dsn) for dsn in both]
    with window_at(url, browser, viewport=size, color_scheme=scheme, bypass_csp=True) as tab:
        tab.goto("/")
        expect(row_of(tab, names[0])).to_contain_text("connected")
        expect(row_of(tab, "127.0.0.1:1/x")).to_contain_text("away since")
        assert violations(tab, RULES) == []
        assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        ready = row_of(tab, names[1]).locator("[data-name=Ready]")
        before = int(ready.inner_text())
        send(both[1], "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', 'mail')")
        expect(ready).to_have_text(str(before + 1), timeout=LIMIT * 1000)  # without a reload


def test_switch_opens_the_same_page_of_another_database(browser, both, url):
    here, there = (name_of(dsn) for dsn in both)
    with window_at(url, browser, viewport=WIDE) as tab:
        tab.goto("/")
        tab.get_by_role("link", name=here, exact=True).click()
        tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
        expect(tab.get_by_role("heading", name="Queues", level=1)).to_be_visible()
        first = tab.url
        tab.locator(".switch summary").focus()
        tab.keyboard.press("Enter")
        tab.get_by_role("list", name="Databases").get_by_role("link", name=there).click()
        expect(tab.locator(".switch summary")).to_have_text(there)
        expect(tab.get_by_role("heading", name="Queues", level=1)).to_be_visible()
        assert tab.url != first
        expect(tab.locator("main")).to_contain_text("mail")


def test_list_of_databases_and_switch_work_without_scripts(browser, both, url):
    with window_at(url, browser, java_script_enabled=False) as tab:
        tab.goto("/")
        row_of(tab, name_of(both[0])).locator("[data-name=Ready] a").click()
        expect(tab.locator("tbody tr").first).to_contain_text("a:b")
        tab.locator(".switch summary").click()
        tab.get_by_role("link", name="All databases").click()
        expect(row_of(tab, name_of(both[1]))).to_contain_text("connected")
