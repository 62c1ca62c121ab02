"""A flow of 20 nodes with a failed branch, inspected and retried in a browser, with a real supervisor."""

from __future__ import annotations

import re

import psycopg
from playwright.sync_api import expect

from jobherd import Client, Flow
from tests.dashboard import work
from tests.dashboard.test_look import RULES, violations
from tests.support.patience import LIMIT

RUNS = """SELECT (extras).node, (SELECT count(*) FROM jobherd.attempts a WHERE a.job = h.id) + 1, finished_at
            FROM jobherd.history h WHERE (extras).flow = %s"""


def twenty(herd, folder):
    """Enqueue a flow: a node, three branches of six nodes after it, then a sum. The middle branch's file is missing."""
    (folder / "index").write_text("x" * 7)
    flow = Flow("sheets", on_failure="continue")
    index = flow.add(work.read, str(folder / "index"))
    ends = []
    for name in ("left", "middle", "right"):
        if name != "middle":
            (folder / name).write_text("x" * 100)
        node = flow.add(work.copy, index.result)
        node = flow.add(work.read, str(folder / name)).after(node)
        for _ in range(4):
            node = flow.add(work.copy, node.result)
        ends.append(node)
    flow.add(work.total, *[node.result for node in ends])
    assert len(flow.nodes()) == 20
    with Client(herd.dsn) as client:
        return flow.enqueue(client=client)


def runs(herd, flow):
    with psycopg.connect(herd.dsn, autocommit=True) as connection:
        return {node: (times, at) for node, times, at in connection.execute(RUNS, [flow]).fetchall()}


def test_failed_branch_is_retried_from_the_page_after_the_fix(tab, herd, tmp_path):
    flow = twenty(herd, tmp_path)
    tab.goto("/flows")
    tab.get_by_role("link", name=str(flow), exact=True).click()
    failed = tab.locator('[id="node-sheet:read-3"]')
    expect(tab.locator(".facts .state")).to_contain_text("failed", timeout=LIMIT * 1000)  # without a reload
    expect(failed).to_contain_text("failed")
    expect(failed).to_contain_text("after sheet:copy-6")
    expect(tab.locator(".graph .state-completed")).to_have_count(14)
    expect(tab.locator(".graph .state-cancelled")).to_have_count(5)
    failed.get_by_role("link", name=re.compile("^job")).click()
    expect(tab.locator("main")).to_contain_text("FileNotFoundError")
    expect(tab.locator("main")).to_contain_text(str(tmp_path / "middle"))
    before = runs(herd, flow)
    tab.goto(f"/flows/{flow}")
    graph = tab.locator(".graph")
    assert graph.evaluate("one => one.scrollWidth <= one.clientWidth")  # no layer is hidden
    expect(tab.locator(".facts").get_by_role("link", name="sheet:read-3")).to_be_in_viewport()

    (tmp_path / "middle").write_text("x" * 1000)
    tab.goto(f"/flows/{flow}")
    tab.get_by_label("Reason, for the audit log").fill("the file is there")
    tab.get_by_role("button", name="Retry").click()
    expect(tab.locator("body")).to_contain_text("runs again from where it failed: 6 jobs")
    expect(tab.locator(".facts .state")).to_contain_text("completed", timeout=LIMIT * 1000)
    expect(tab.locator(".graph .state-completed")).to_have_count(20)
    expect(tab.locator(".graph .critical").last).to_contain_text("sheet:sum")
    after = runs(herd, flow)
    again = {node for node in after if after[node] != before.get(node)}
    assert again == {"sheet:read-3", "sheet:sum", *(f"sheet:copy-{n}" for n in range(7, 11))}
    assert after["sheet:read-3"][0] == 2
    with psycopg.connect(herd.dsn) as connection:
        [(total,)] = connection.execute(
            "SELECT result FROM jobherd.history WHERE (extras).flow = %s AND kind = 'sheet:sum'", [flow]
        ).fetchall()
    assert total == 100 + 1000 + 100


def test_flow_pages_fit_a_phone_and_are_accessible(browser, herd, tmp_path):
    flow = twenty(herd, tmp_path)
    with herd.window(browser, viewport={"width": 390, "height": 844}, bypass_csp=True) as tab:
        for place in ("/flows", f"/flows/{flow}"):
            tab.goto(place)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, place
            assert violations(tab, RULES) == []
        retry = tab.get_by_role("button", name="Retry").bounding_box()
        assert retry["y"] < 844
