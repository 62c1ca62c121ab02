"""The pages of queues and of the audit log: contents, actions and audit entries."""

from __future__ import annotations

import html
import json
import re

import pytest

from jobherd.workers.dashboard import application, audit, queues
from tests.cli.rows import child, claim, send, supervisor
from tests.dashboard.support import W01, Page


def row_of(text, name):
    """Return the table row of a queue."""
    return text.partition(f">{name}</a></th>")[2].partition("</tr>")[0]


def test_page_without_queues_shows_how_to_enqueue(page):
    assert "jobherd enqueue" in page.get("/queues").text


def test_page_shows_depth_limits_pauses_and_tenants(page, database, monkeypatch):
    monkeypatch.setattr(queues, "MOST", 1000)
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"queue\": \"mail\"}') FROM generate_series(1, 3)")
    claim(database, child(database, supervisor(database)))
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"queue\": \"mail\", \"delay\": 600}')")
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"queue\": \"deep\"}') FROM generate_series(1, 1200)")
    send(database, "SELECT jobherd.set_limit('media', 9), jobherd.pause('mail', 'provider <b>down</b>', actor => 'anna'), "
                   "jobherd.pause(kind => 'k:slow', actor => 'bert')")  # fmt: skip
    send(database, 'SELECT jobherd.enqueue(\'a:b\', \'{}\', \'{"queue": "mail", "tenant": "acme"}\')')
    text = page.get("/queues").text
    mail = row_of(text, "mail")
    assert re.findall(r'data-name="Ready">(.*?)<', mail)[0] == "3"
    assert "by anna" in mail
    assert "provider &lt;b&gt;down" in mail
    assert "1,000+" in row_of(text, "deep"), "counting must stop at 1,000 jobs"
    assert "0 of 9" in row_of(text, "media")
    assert "kind k:slow" in text
    assert "acme" in text


def test_queues_beyond_the_limit_are_counted_in_one_row(page, database, monkeypatch):
    monkeypatch.setattr(queues, "QUEUES", 2)
    send(
        database,
        "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('queue', 'q' || n, 'delay', 600 + n)) FROM generate_series(1, 5) AS n",
    )
    text = page.get("/queues").text
    assert "q1</a></th>" in text
    assert ">3<" in text.partition(f">{queues.OTHERS}</th>")[2].partition("</tr>")[0].replace("\n", "")


def test_only_queues_and_kinds_with_jobs_behind_a_limit_are_marked(page, database):
    send(database, "SELECT jobherd.set_limit('media', 1), jobherd.set_limit('roomy', 2), jobherd.limit('mail', '1/h')")
    send(database, "SELECT jobherd.set_limit(kind => 'a:b', max_running => 1)")
    add = "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('queue', %s::text))"
    send(database, add, "media")
    text = page.get("/queues").text
    assert "at its limit" not in text
    claim(database, child(database, supervisor(database)))
    assert "at its limit" not in row_of(page.get("/queues").text, "media"), "no job waits"
    for queue in ("media", "roomy", "mail", "mail"):
        send(database, add, queue)
    send(database, "INSERT INTO jobherd.buckets VALUES ('queue', 'mail', now() + interval '30 min')")
    text = page.get("/queues").text
    assert {name: "at its limit" in row_of(text, name) for name in ("media", "roomy", "mail")} == {
        "media": True,
        "roomy": False,
        "mail": True,
    }
    assert "at its limit" in text.partition('<tr id="kind-a:b">')[2].partition("</tr>")[0]


def test_rate_limit_is_shown_with_the_tokens_left(page, database):
    send(database, "SELECT jobherd.limit('mail', '1/h', burst => 3), jobherd.limit(kind => 'k:rare', rate => '5/2h')")
    send(database, "INSERT INTO jobherd.buckets VALUES ('queue', 'mail', now() + interval '150 min')")
    text = page.get("/queues").text
    assert "1/h, 0 of 3 left, next in " in row_of(text, "mail")
    assert "5/2h, 1 of 1 left" in text


def test_rules_for_partitions_are_shown(page, database):
    send(database, "SELECT jobherd.limit_each_rate('crm', '10/s', burst => 5), jobherd.limit_each_rate('own', '1/h')")
    send(database, "SELECT jobherd.limit_each('crm', 2), jobherd.fair('crm', '{\"acme\": 3}'), jobherd.fair('fair')")
    text = page.get("/queues").text
    assert "2 of each partition, 10/s of each partition, burst 5, turns acme=3" in row_of(text, "crm")
    assert "1/h of each partition, burst 1" in row_of(text, "own")
    assert "partitions take turns" in row_of(text, "fair")


def test_the_partitions_with_the_most_jobs_are_listed(page, database, monkeypatch):
    monkeypatch.setattr(queues, "PARTITIONS", 3)
    jobs = {"acme": 3, "<b>globex": 2, "small": 1}
    for name, count in jobs.items():
        options = {"queue": "crm", "partition": name}
        for _ in range(count):
            send(database, "SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", json.dumps(options))
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"queue\": \"crm\"}') FROM generate_series(1, 5)")
    assert "Partitions with the most jobs" not in page.get("/queues").text, "no queue has a rule for partitions yet"
    send(database, "SELECT jobherd.fair('crm')")
    claim(database, child(database, supervisor(database)))
    send(database, "UPDATE jobherd.ready SET run_at = now() - interval '2 h' WHERE (extras).partition = 'small'")
    text = page.get("/queues").text.partition("Partitions with the most jobs")[2].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in text.split("<tr>")[2:]]
    found = {name: (int(ready) + int(running), oldest) for _, name, ready, oldest, running in rows}
    assert [row[0] for row in rows] == ["crm"] * 3
    assert [name for _, name, *_ in rows][0] == "acme"
    assert {html.unescape(name): count for name, (count, _) in found.items()} == jobs
    assert "<b>globex" not in text
    assert [row[4] for row in rows] == ["1", "0", "0"], "the first job of acme runs"
    assert "2 h" in found["small"][1]


def noted(dsn):
    return send(dsn, "SELECT actor, action, target, reason FROM jobherd.audit ORDER BY id")


@pytest.mark.parametrize(
    ("fields", "said", "note"),
    [
        ({"scope": "queue", "name": "mail", "do": "pause", "reason": "down", "for": "30m"}, "Queue mail is paused.", ("pause", {"queue": "mail"}, "down")),
        ({"scope": "kind", "name": "a:b", "do": "pause"}, "Kind a:b is paused.", ("pause", {"kind": "a:b"}, None)),
        ({"scope": "all", "do": "pause", "name": "mail"}, "Everything is paused.", ("pause", {"all": "everything"}, None)),
        ({"scope": "queue", "name": "mail", "do": "resume"}, "Queue mail was not paused.", None),
        ({"scope": "queue", "name": "mail", "do": "limit", "max_running": "7"}, "runs at most 7 at a time; there was no limit before.",
         ("limit", {"queue": "mail", "max_running": 7, "before": None}, None)),
        ({"scope": "queue", "name": "mail", "do": "unlimit"}, "has no concurrency limit any more", None),
        ({"scope": "queue", "name": "mail", "do": "limit", "max_running": "0"}, "A concurrency limit is a number from 1", None),
        ({"scope": "queue", "name": "mail", "do": "rate", "rate": "100/min", "burst": "5"}, "Queue mail starts at most 100/min; there was no rate limit before.",
         ("limit", {"queue": "mail", "rate": "100/min", "burst": 5, "before": None}, None)),
        ({"scope": "queue", "name": "mail", "do": "unrate", "rate": "1/s"}, "has no rate limit any more", None),
        ({"scope": "queue", "name": "mail", "do": "rate", "rate": "often"}, "is not a number of jobs and a time", None),
        ({"scope": "queue", "name": "mail", "do": "rate", "rate": "1/s", "burst": "x"}, "the burst must be a whole number", None),
        ({"scope": "all", "do": "rate", "rate": "1/s"}, "everything together has no limit", None),
        ({"scope": "queue", "name": "crm", "do": "fair", "weights": "acme=3, x=1"}, "Partitions of queue crm take turns; acme takes 3 jobs at its turn.",
         ("fair", {"queue": "crm", "weights": {"acme": 3}, "before": None}, None)),
        ({"scope": "queue", "name": "crm", "do": "fair", "weights": "acme"}, "is not a partition and a number from 1 to 999", None),
        ({"scope": "queue", "name": "crm", "do": "unfair"}, "Partitions of queue crm take no turns any more.", None),
        ({"scope": "queue", "name": "crm", "do": "each", "each": "1", "strict": "yes"}, "runs at most 1 of each partition at a time, in strict order; there was none before.",
         ("limit", {"queue": "crm", "each": 1, "strict": True, "before": None}, None)),
        ({"scope": "queue", "name": "crm", "do": "each", "each": "2", "strict": "yes"}, "Strict order requires 1 job", None),
        ({"scope": "queue", "name": "crm", "do": "each", "each": "many"}, "A limit of each partition is a number from 1", None),
        ({"scope": "queue", "name": "crm", "do": "uneach"}, "has no limit of each partition any more", None),
        ({"scope": "queue", "name": "crm", "do": "each_rate", "each_rate": "10/s", "each_burst": "5"}, "Queue crm starts at most 10/s of each partition; there was none before.",
         ("limit", {"queue": "crm", "each_rate": "10/s", "burst": 5, "before": None}, None)),
        ({"scope": "queue", "name": "crm", "do": "each_rate", "each_rate": "often"}, "is not a number of jobs and a time", None),
        ({"scope": "queue", "name": "crm", "do": "uneach_rate"}, "has no rate limit of each partition any more", None),
        ({"scope": "kind", "name": "a:b", "do": "fair"}, "Only a queue has partitions", None),
        ({"scope": "queue", "name": "mail", "do": "pause", "for": "soon"}, "the time", None),
        ({"scope": "queue", "name": "", "do": "pause"}, "Choose a queue.", None),
        ({"scope": "queue", "name": "Mail!", "do": "pause"}, "is not a queue name", None),
        ({"scope": "planet", "name": "mars", "do": "pause"}, "Choose a queue, a kind or everything", None),
        ({"scope": "queue", "name": "mail", "do": "dance"}, "Choose an action", None),
    ],
)  # fmt: skip
def test_action_shows_a_message_and_each_change_gets_an_audit_entry(page, database, fields, said, note):
    shown = page.act("/queues/action", follow=True, **fields)
    assert said in shown.text
    found = [(actor, action, {name: value for name, value in target.items() if name != "resume_at"}, reason)
             for actor, action, target, reason in noted(database)]  # fmt: skip
    assert found == ([("dashboard", *note)] if note else [])


def test_pause_of_a_queue_or_of_everything_is_shown_and_can_be_resumed(page, database):
    send(database, "SELECT jobherd.pause('mail'), jobherd.pause('*', 'moving')")
    text = page.get("/queues").text
    assert "Nothing starts on any host" in text
    assert 'value="resume"' in row_of(text, "mail")
    assert "is resumed" in page.act("/queues/action", follow=True, scope="all", name="", do="resume").text
    assert "Nothing starts on any host" not in page.get("/queues").text


def test_read_only_page_has_no_form_and_rejects_actions(database):
    with Page(application(database, read_only=True)) as page:
        assert "/queues/action" not in page.get("/queues").text
        assert page.act("/queues/action", scope="queue", name="mail", do="pause").status_code == 403


def test_form_is_filled_in_from_the_url(page):
    text = page.get("/queues?kind=mail:receipt").text
    assert 'value="mail:receipt"' in text
    assert '<option value="kind" selected>' in text


@pytest.mark.parametrize("text", W01)
def test_pages_escape_reasons_actors_actions_and_targets(page, database, text):
    send(database, "SELECT jobherd.pause('mail', %s, actor => %s)", text, text)
    send(
        database,
        "SELECT jobherd.note_audit(%s, %s, jsonb_build_object(%s::text, %s::text, 'job', %s::text, 'supervisor', %s::text), %s)",
        *[text] * 7,
    )
    for path in ("/queues", "/audit"):
        answer = page.get(path)
        assert answer.status_code == 200
        for breach in ("<script>alert", "<img src=x", "<svg/onload", "<b>bold"):
            assert breach not in answer.text


# -- the audit log


def test_audit_page_without_entries_shows_why(page):
    assert "No audit entries yet" in page.get("/audit").text
    assert "No match" in page.get("/audit?actor=nobody").text
    assert "No older entries" in page.get("/audit?before=1").text


def test_audit_log_is_paginated_and_filtered_by_actor_and_action(page, database, monkeypatch):
    monkeypatch.setattr(audit, "MOST", 3)
    for actor in ("anna", "bert"):
        for number in range(4):
            send(
                database,
                "SELECT jobherd.note_audit(%s, %s, %s::jsonb)",
                actor,
                "cancel" if number % 2 else "retry",
                f'{{"job": {number + 100}}}',
            )
    first = page.get("/audit").text
    assert [f"job {number}" in first for number in (103, 102, 101, 100)] == [True, True, True, False]
    seen, address, pages = [], "/audit", 0
    while address:
        text = page.get(address).text
        seen += [part.partition("<")[0] for part in text.split('">job ')[1:]]
        older = text.partition('">Older</a>')[0].rpartition('href="')[2] if '">Older</a>' in text else ""
        address, pages = older.replace("&amp;", "&"), pages + 1
    assert (seen, pages) == (["103", "102", "101", "100"] * 2, 3), "each once, in order"
    narrowed = page.get("/audit?actor=anna&action=cancel").text
    assert [part.partition("<")[0] for part in narrowed.split('">job ')[1:]] == ["103", "101"]
    assert '<option value="cancel" selected>' in narrowed


@pytest.mark.parametrize(
    "query",
    ["before=x", "before=-1", "before=99999999999999999999", "actor=" + "x" * 5000, "before=%00", "action=%F0%28"],
)
def test_invalid_query_values_do_not_break_the_audit_page(page, query):
    assert page.get(f"/audit?{query}").status_code == 200


def test_queues_are_sorted_numerically_and_paused_with_a_button_in_their_row(page, database):
    for name in ("q-10", "q-2", "q-1"):
        send(database, "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('queue', %s::text))", name)
    text = page.get("/queues").text
    assert re.findall(r'<a href="/jobs\?queue=(q-\d+)"', text) == ["q-1", "q-2", "q-10"]
    row = row_of(text, "q-2")
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', row))
    assert ">Pause</button>" in row
    assert page.act("/queues/action", **{name: fields[name] for name in ("do", "scope", "name")}).status_code == 303
    assert send(database, "SELECT name FROM jobherd.gates WHERE paused_at IS NOT NULL") == [("q-2",)]
    assert ">Resume</button>" in row_of(page.get("/queues").text, "q-2")


def test_concurrency_limit_of_a_queue_is_set_and_removed_in_its_row(page, database):
    send(database, "SELECT jobherd.enqueue('mail:send', '{}', '{\"queue\": \"mail\"}')")
    assert 'aria-label="Most jobs of mail running at a time"' in page.get("/queues").text
    said = page.act("/queues/action", follow=True, scope="queue", name="mail", do="limit", max_running="3")
    assert "Queue mail runs at most 3 at a time" in said.text
    row = page.get("/queues").text.partition('id="limit-mail"')[2].partition("</details>")[0]
    assert 'value="3"' in row
    assert 'value="unlimit"' in row
