"""The pages of flows: the list, the graph with the states of its nodes, and the actions."""

from __future__ import annotations

import re

from tests.cli.rows import send
from tests.sql.test_after import end, resolve
from tests.sql.test_flows import start
from tests.support.queue import Queue


def node(text, name):
    """Return the box of a node in the graph."""
    return text.partition(f'id="node-{name}"')[2].partition("</li>")[0]


def test_page_without_flows_shows_a_note_and_a_missing_flow_is_not_found(page):
    assert "No flow yet" in page.get("/flows").text
    assert page.get("/flows/7").status_code == 404
    assert page.get(f"/flows/{2**64}").status_code == 404


def test_graph_shows_a_failed_node_and_the_flow_is_retried_and_canceled(page, database):
    with Queue(database) as queue:
        flow = start(
            queue, {"node": "index"}, {"node": "page", "bind": {"url": "index"}, "map": "url"}, {"node": "sum", "bind": {"n": "page"}},
            {"node": "tidy", "on": "done"},
        )  # fmt: skip
        end(queue, result='["x", "y"]')
        resolve(queue)
        text = page.get(f"/flows/{flow}").text
        assert [len(layer.split("<li")) - 1 for layer in re.findall(r'aria-label="Layer.*?</ol>', text, re.DOTALL)] == [
            1,
            1,
            1,
        ]
        assert "completed" in node(text, "index")
        assert re.search(r"ready.* 2", node(text, "page"), re.DOTALL)
        assert "after index" in node(text, "page")
        assert "blocked" in node(text, "sum")
        assert "after the flow: done" in node(text, "tidy")
        end(queue, "failed", code="NO_PAPER", error="out of paper")
        resolve(queue)
        assert "NO_PAPER" in node(page.get(f"/flows/{flow}").text, "page")
        assert f'href="/flows/{flow}"' in page.get("/flows").text
        assert "failed" in page.get("/flows").text
        answer = page.act("/flows/action", follow=True, id=flow, do="retry", reason="there is paper")
        assert "runs again from where it failed: 3 jobs" in answer.text
        resolve(queue)
        assert "blocked" in node(page.get(f"/flows/{flow}").text, "sum")
        assert "is being cancelled" in page.act("/flows/action", follow=True, id=flow, do="cancel").text
        resolve(queue)
        assert f"Flow {flow} is cancelled already" in page.act("/flows/action", follow=True, id=flow, do="cancel").text
    assert send(database, "SELECT action, reason FROM jobherd.audit WHERE target ? 'flow' ORDER BY id LIMIT 1") == [
        ("retry", "there is paper")
    ]


def test_ended_flow_is_retried_from_a_node(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]})
        retry = {"follow": True, "id": flow, "do": "retry"}
        assert "is open: cancel it first" in page.act("/flows/action", **retry, **{"from": "parse"}).text
        for _ in range(2):
            end(queue)
            resolve(queue)
        assert '<option value="parse">' in page.get(f"/flows/{flow}").text
        assert "runs again from node parse: 1 jobs" in page.act("/flows/action", **retry, **{"from": "parse"}).text
        assert queue.run("SELECT kind FROM jobherd.ready") == [("a:parse",)]
        end(queue)
        resolve(queue)
        said = page.act("/flows/action", **retry, **{"from": "<b>"}).text
        assert "has no job of a node" in said
        assert "<b>'" not in said


def test_a_flow_is_sealed(page, database):
    with Queue(database) as queue:
        flow = start(queue, sealed=False, version=3, unique_key="<b>")
        assert "<dt>Version</dt><dd>3</dd>" in page.get(f"/flows/{flow}").text
        assert "<dt>Unique key</dt><dd>&lt;b&gt;</dd>" in page.get(f"/flows/{flow}").text
        assert "<dt>Sealed</dt><dd>no" in page.get(f"/flows/{flow}").text
        assert f"Flow {flow} is sealed." in page.act("/flows/action", follow=True, id=flow, do="seal").text
        text = page.get(f"/flows/{flow}").text
        assert "<dt>Sealed</dt>" not in text
        assert 'value="seal"' not in text
        resolve(queue)
    assert f"Flow {flow} is completed already" in page.act("/flows/action", follow=True, id=flow, do="seal").text


def test_impossible_action_shows_a_reason(page):
    assert "does not exist" in page.act("/flows/action", follow=True, id=7, do="cancel").text
    assert "does not exist" in page.act("/flows/action", follow=True, id=7, do="retry").text
    for given in ({"id": "x", "do": "cancel"}, {"id": "7", "do": "explode"}, {"id": str(2**70), "do": "cancel"}):
        assert "Choose a flow" in page.act("/flows/action", follow=True, **given).text


def test_search_finds_a_flow_by_id_and_by_name(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"})
    assert page.get(f"/search?q={flow}").url.path == f"/flows/{flow}"
    assert '<a href="/flows?name=test">Flows named “test”</a>' in page.get("/search?q=test").text
    assert f'<tr id="flow-{flow}">' in page.get("/flows?name=test").text
    assert "No flow matches" in page.get("/flows?name=tes").text
    assert page.get("/flows?name=%00&state=<b>").status_code == 200
    assert page.get(f"/jobs/{flow + 9}").status_code == 404


def test_failed_node_is_named_first_and_the_form_offers_only_possible_actions(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]}, policy="continue")
        assert 'value="cancel"' in page.get(f"/flows/{flow}").text
        end(queue)
        resolve(queue)
        end(queue, "failed", code="UNHANDLED_ERROR", error="ValueError: no such <page>")
        resolve(queue)
        text = page.get(f"/flows/{flow}").text
        assert '<dt>Failed</dt><dd><a href="#node-parse">parse</a> <code>ValueError</code></dd>' in text
        assert "<code>ValueError</code>" in node(text, "parse")
        assert 'class="card critical failed"' in text
        assert text.index("Change the flow") < text.index('class="graph"')
        assert 'value="cancel"' not in text
        assert (
            '<option value="">where it failed</option><option value="fetch">fetch: completed</option><option value="parse">parse: failed</option>'
            in text
        )
        page.act("/flows/action", id=flow, do="retry")
        end(queue)
        resolve(queue)
        text = page.get(f"/flows/{flow}").text
        assert "where it failed</option>" not in text
        assert 'value="cancel"' not in text
        assert '<option value="parse">parse: completed</option>' in text


def test_names_of_nodes_are_escaped(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "<b>x</b>", "kind": "a:b"})
    assert "<b>x</b>" not in page.get(f"/flows/{flow}").text


def test_job_links_to_its_flow_and_after_the_end_to_the_retry_of_the_flow(page, database):
    with Queue(database) as queue:
        flow = start(
            queue, {"node": "index"}, {"node": "page", "bind": {"url": "index"}, "map": "url"}, {"node": "sum", "bind": {"n": "page"}}
        )  # fmt: skip
        last = queue.run("SELECT id FROM jobherd.blocked WHERE kind = 'a:sum'")[0][0]
        assert f'<a href="/flows/{flow}#node-sum">{flow}: test</a>' in page.get(f"/jobs/{last}").text
        end(queue, result='["x", "y"]')
        resolve(queue)
        failed = end(queue, "failed")
        text = page.get(f"/jobs/{failed}").text
        assert f'<a href="/flows/{flow}#node-page">{flow}: test</a>' in text  # not the flow of the node's jobs
        assert "Run again" in text  # the open flow waits for it
        resolve(queue)
        for job in (failed, last):
            text = page.get(f"/jobs/{job}").text
            assert f'<a class="button main" href="/flows/{flow}">Retry the flow…</a>' in text
            assert f"jobherd flow retry {flow}" in text
            assert f"Run only job {job}? Flow {flow} stays failed" in text
            assert "Run again" not in text
        page.act("/flows/action", id=flow, do="retry")
        resolve(queue)
        for _ in range(3):
            end(queue, result="1")
            resolve(queue)
        assert "Retry the flow" not in page.get(f"/jobs/{failed}").text


def test_bulk_retry_shows_how_many_jobs_are_members_of_an_ended_flow(page, database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]})
        end(queue, "failed", error="ValueError: no such page")
        open_flow = start(queue, {"node": "fetch"}, policy="continue")
        end(queue, "failed", error="ValueError: no such page")
        alone = queue.enqueue("a:b")
        end(queue, "failed", error="ValueError: no such page")
        ids = [one for (one,) in send(database, "SELECT id FROM jobherd.history ORDER BY id")]
        assert alone in ids and len(ids) == 3
        confirmed = page.act("/jobs/confirm", action="retry", id=ids).text
        assert "of them" not in confirmed, "while a flow is open, its jobs can still be retried"
        resolve(queue)
        send(database, "UPDATE jobherd.flows SET state = 'open', ended_at = NULL WHERE id = %s", open_flow)
        confirmed = page.act("/jobs/confirm", action="retry", id=ids).text
        assert "1 of them is a member of a flow that has ended" in confirmed
        assert f'<a href="/flows/{flow}">flow {flow}</a>' in confirmed
        assert f"/flows/{open_flow}" not in confirmed
        assert "of them" not in page.act("/jobs/confirm", action="delete", id=ids).text
        send(database, "UPDATE jobherd.flows SET state = 'failed', ended_at = now() WHERE id = %s", open_flow)
        assert "2 of them are members of flows" in page.act("/jobs/confirm", action="retry", id=ids).text
