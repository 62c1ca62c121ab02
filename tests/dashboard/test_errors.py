"""The pages of errors: groups by kind, exception class and place, with times, trend, example and retry."""

from __future__ import annotations

import html
import re

import pytest

from jobherd.supervisor.cli.top.watch import _alike
from jobherd.workers.dashboard import errors
from jobherd.workers.inspect.failures import groups
from tests.cli.rows import past, send
from tests.dashboard.support import W01
from tests.support.queue import Queue

TRACE = 'Traceback (most recent call last):\n  File "/app/{}", line {}, in {}\n    it()\n  File "/x/lib/python3.11/site-packages/http.py", line 1, in get\n{}'


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def fail(queue, kind, error, outcome="failed", count=1, place=("mail.py", 7, "send"), code="UNHANDLED_ERROR", **more):
    child = queue.child()
    queue.enqueue_many(kind, count)
    batch = child.claim(count)
    trace = TRACE.format(*place, error)
    return child.settle(
        batch[0].token,
        [job.id for job in batch],
        outcome,
        error=error,
        code=code,
        traceback=trace,
        delay=3600.0,
        **more,
    )


def rows(page, path="/errors"):
    """Return the rows of the list as text."""
    text = page.get(path).text.partition("<tbody>")[2]
    found = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in found]


def test_errors_are_grouped_by_kind_class_and_place_and_include_retrying_jobs(page, queue):
    fail(queue, "mail:send", "ValueError: no such order 7", count=3)
    fail(queue, "mail:send", "ValueError: no such order 8", "retry", count=2)
    fail(queue, "mail:send", "ValueError: no address", place=("address.py", 31, "parse"))
    fail(queue, "mail:send", "KeyError: 'to'", usage='{"error_class": "builtins.KeyError"}')
    fail(queue, "card:charge", "Poison: declined", code="DECLINED", count=2)
    found = rows(page)
    assert [re.search(r"^.*? \w+:\w+(?= )", row)[0] for row in found] == [
        "5 2 retrying ValueError mail.py:7 in send mail:send",
        "2 DECLINED mail.py:7 in send card:charge",
        "1 KeyError mail.py:7 in send mail:send",
        "1 ValueError address.py:31 in parse mail:send",
    ]
    for path in ("/errors", "/", "/jobs?state=failed"):
        assert "UNHANDLED_ERROR" not in re.sub(r"<[^>]*>", " ", page.get(path).text), path
    assert [row.split()[1] for row in rows(page, "/errors?kind=card:charge")] == ["DECLINED"]


def test_page_of_an_error_group_retries_all_of_its_jobs(page, queue, database):
    again = fail(queue, "mail:send", "ValueError: no such order", "retry", count=2)
    failed = fail(queue, "mail:send", "ValueError: no such order", count=3)
    fail(queue, "mail:send", "KeyError: 'to'")
    (to,) = {
        html.unescape(found)
        for found in re.findall(r'href="(/errors/group[^"]*ValueError[^"]*)"', page.get("/errors").text)
    }
    shown = page.get(to)
    assert shown.status_code == 200
    assert "3 failed, 2 retrying; 5 attempts" in shown.text
    assert "File &#34;/app/mail.py&#34;, line 7, in send" in shown.text
    ids = re.findall(r'name="id" value="(\d+)"', shown.text)
    assert sorted(map(int, ids)) == sorted([*again, *failed])
    sent = {"action": "retry", "id": ids}
    asked = page.act_at(to, "/jobs/confirm", **sent)
    assert "5 jobs" in asked.text
    assert page.act_at(to, "/jobs/action", **sent).status_code == 303
    (wanted,) = send(database, "SELECT wanted FROM jobherd.bulks")[0]
    assert sorted(wanted["ids"]) == sorted([*again, *failed])
    assert page.get(to.replace("ValueError", "OSError")).status_code == 404


def test_error_list_counts_and_dates_only_failures_of_the_window(page, database):
    past(database, "failed", days=0.5, error="ValueError: old")
    past(database, "failed", days=3, error="ValueError: older")
    past(database, "failed", error="ValueError: new")
    (day,) = rows(page)
    assert day.startswith("2 BOOM mail:receipt")
    assert re.search("11 h|12 h", day)
    (week,) = rows(page, "/errors?window=week")
    assert week.startswith("3 BOOM")
    assert re.search("2 d 23 h|3 d", week)
    assert rows(page, "/errors?window=hour")[0].startswith("1 BOOM")


def test_page_shows_a_note_if_there_are_more_failures_than_it_examines(page, database, monkeypatch):
    past(database, "failed", many=5)
    assert "there are more" not in page.get("/errors").text
    monkeypatch.setattr(errors, "MOST", 3)
    assert "there are more" in page.get("/errors").text


def test_page_without_failures_shows_a_note(page, database):
    past(database, "cancelled")
    assert "No failure" in page.get("/errors").text


def test_pages_escape_error_messages_and_codes(page, database):
    for text in W01:
        past(database, "failed", kind="mail:send", error=f"ValueError: {text}")
        send(
            database,
            "UPDATE jobherd.history SET error_code = %s WHERE id = (SELECT max(id) FROM jobherd.history)",
            text[:60],
        )
    shown = page.get("/errors").text
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert "49" not in "".join(rows(page)).replace("{{7*7}}", "").partition("ValueError: {{")[2][:3]
    for to in re.findall(r'href="(/errors/group[^"]*)"', shown):
        answer = page.get(html.unescape(to))
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text


def test_redacted_value_does_not_appear_in_error_groups(page, database):
    past(database, "failed", kind="card:charge", error="card 4111222233334444 is not valid")
    send(
        database,
        "UPDATE jobherd.history SET payload = '{\"card\": \"4111222233334444\"}', traceback = 'ValueError: 4111222233334444'",
    )
    send(
        database,
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
        " VALUES ('card:charge', 'mail', 0, 5, 3, 7, 30, '[\"$.card\"]')",
    )
    text = page.get("/errors").text
    assert "«redacted»" in text
    assert "41112222" not in text
    (to, *_) = re.findall(r'href="(/errors/group[^"]*)"', text)
    assert "41112222" not in page.get(html.unescape(to)).text


def test_place_is_the_last_frame_outside_of_libraries():
    frame = '  File "{}", line 3, in f\n'
    base = {
        "id": 1,
        "kind": "a:b",
        "state": "failed",
        "attempts": 1,
        "code": None,
        "class": "app.Odd",
        "error": "x",
        "at": 0,
        "ago": 0,
    }

    def place(*paths):
        (group,) = groups([{**base, "traceback": "".join(frame.format(path) for path in paths)}], 60.0)
        return group.place

    assert place("/app/a.py", "/v/lib/python3.12/json/decoder.py") == "a.py:3 in f"
    assert place("/v/site-packages/x.py") == "x.py:3 in f"
    assert place() == ""


def test_top_shows_equal_failures_in_one_line():
    made = [
        {"id": 9 - n, "kind": kind, "queue": "q", "error_code": "UNHANDLED_ERROR", "error": f"{name}: {n}", "ago": n}
        for n, (kind, name) in enumerate(
            [("a:b", "OSError"), ("a:b", "OSError"), ("a:b", "KeyError"), ("c:d", "OSError")]
        )
    ]
    assert [(row["id"], row["error"]) for row in _alike(made)] == [
        (9, "2 failed: OSError: 0"),
        (7, "KeyError: 2"),
        (6, "OSError: 3"),
    ]
