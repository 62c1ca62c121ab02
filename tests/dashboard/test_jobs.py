"""The list of jobs: its rows, filter and tabs, and the confirmation of bulk actions."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest
from starlette.datastructures import QueryParams

from jobherd.workers.dashboard import application, jobs
from jobherd.workers.dashboard.filters import Wanted
from tests.cli.rows import past, send
from tests.dashboard.support import W01, Page
from tests.dashboard.test_job_search import fill
from tests.support.patience import LIMIT


def listed(answer):
    """Return the job ids that a page lists, in order."""
    return [int(number) for number in re.findall(r'<tr id="job-(\d+)">', answer.text)]


def test_list_names_the_state_of_each_job_and_links_to_the_job(page, database):
    made = fill(database)
    answer = page.get("/jobs")
    assert listed(answer) == sorted(made.values(), reverse=True)
    for state, number in made.items():
        row = re.search(rf'<tr id="job-{number}">.*?</tr>', answer.text, re.DOTALL)[0]
        assert f'class="state state-{state}"' in row
        assert re.search(rf"</span> {state}</span>", row), state
        assert f'href="/jobs/{number}"' in row
    assert "it broke" in answer.text


def test_filter_is_read_from_the_url_and_shown_in_the_form(page, database):
    made = fill(database)
    asked = "state=failed&state=expired&kind=mail%3Areceipt&queue=default&code=BOOM&since=24h&until=2100-01-01+08%3A00"
    answer = page.get(f"/jobs?{asked}")
    assert listed(answer) == sorted((made["failed"], made["expired"]), reverse=True)
    form = answer.text[answer.text.index('class="card filter"') :]
    assert set(re.findall(r'value="(\w+)" checked', form)) == {"failed", "expired"}
    for value in ("mail:receipt", "default", "BOOM", "24h", "2100-01-01 08:00"):
        assert f'value="{value}"' in form, value
    read, problems = Wanted.read(QueryParams(asked))
    assert problems == {}
    assert sorted(parse_qsl(read.query())) == sorted(parse_qsl(asked))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("since=soon", "since is not a time"), ("until=99999999999999h", "until is not a time"), ("state=angry", "is not a state"),
        ("kind=a%00b", "NUL"), ("q=" + "x" * 300, "200 characters"), ("since=-99999d", None), ("before=x&size=77", None), ("before=" + "9" * 40, None),
        ("before=" + "0" * 19 + "1" + "9" * 30, None),
    ],
)  # fmt: skip
def test_invalid_filter_value_is_reported_and_ignored(page, database, asked, said):
    number = past(database, "failed")
    answer = page.get(f"/jobs?{asked}")
    assert answer.status_code == 200
    if said:
        assert said in answer.text
        assert 'role="alert"' in answer.text
    assert listed(answer) == [number] or "since=-" in asked


def test_pagination_lists_each_job_once_newest_first(page, database):
    first = past(database, "completed", many=120) - 119
    seen, path = [], "/jobs"
    while path:
        answer = page.get(path)
        seen += listed(answer)
        onward = re.search(r'rel="next" href="([^"]+)"', answer.text)
        path = onward[1].replace("&amp;", "&") if onward else None
    assert seen == list(range(first + 119, first - 1, -1))


def test_empty_list_shows_how_to_enqueue_or_that_no_job_matches(page, database):
    assert "jobherd enqueue" in page.get("/jobs").text
    past(database, "completed")
    assert "No job matches this filter" in page.get("/jobs?state=failed").text


@pytest.mark.parametrize("word", W01)
def test_list_escapes_texts_of_jobs_and_of_the_filter(page, database, word):
    past(database, "failed", error=word)
    send(
        database,
        "UPDATE jobherd.history SET error_code = %s, extras = jsonb_populate_record(NULL::jobherd.extras, jsonb_build_object('tenant', %s::text))",
        word,
        word,
    )
    for path in ("/jobs", f"/jobs?{Wanted(text=word, kind=word, code=word, since=word).query()}"):
        text = page.get(path).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<svg/onload" not in text


def test_read_only_list_has_no_bulk_controls_and_rejects_bulk_actions(database):
    past(database, "failed")
    with Page(application(database, read_only=True)) as page:
        text = page.get("/jobs").text
        assert 'name="id"' not in text
        assert 'id="many"' not in text
        assert page.act("/jobs/confirm", action="retry", all="1").status_code == 403
        assert page.act("/jobs/action", action="delete", all="1").status_code == 403
    assert send(database, "SELECT count(*) FROM jobherd.bulks") == [(0,)]


# -- confirmation of bulk actions


def test_confirmation_shows_the_effect_and_the_number_of_jobs_and_changes_nothing(page, database):
    past(database, "failed", many=7)
    past(database, "completed", many=5)
    answer = page.act("/jobs/confirm", action="retry", all="1", state="failed")
    assert "<strong>7 jobs</strong> will run again now" in answer.text
    ticked = [row[0] for row in send(database, "SELECT id FROM jobherd.history ORDER BY id LIMIT 3")]
    [(waits,)] = send(database, "SELECT jobherd.enqueue('a:b', '{}')")
    answer = page.act("/jobs/confirm", action="delete", id=[*ticked, waits, 10**9])
    assert "<strong>3 jobs</strong> will be deleted permanently" in answer.text
    assert "Skipped: 1 ready, 1 no longer there" in answer.text
    assert send(database, "SELECT count(*) FROM jobherd.history") == [(12,)]


def test_confirmation_shows_a_minimum_if_more_jobs_match_than_are_counted(page, database, monkeypatch):
    monkeypatch.setattr("jobherd.workers.dashboard.bulk_choice.COUNTED", 10)
    past(database, "failed", many=30)
    answer = page.act("/jobs/confirm", action="retry", all="1", state="failed")
    assert "<strong>At least 10 jobs</strong>" in answer.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"action": "dance", "all": "1"}, "Choose what is to be done"),
        ({"all": "1"}, "Choose what is to be done"),
        ({"action": "cancel", "all": "1", "state": "failed"}, "the filter has none of these states"),
        ({"action": "cancel", "all": "1", "since": "soon"}, "since is not a time"),
    ],
)
def test_invalid_bulk_action_is_rejected_with_a_reason(page, fields, said):
    for path in ("/jobs/confirm", "/jobs/action"):
        answer = page.act(path, **fields)
        assert answer.status_code == 400
        assert said in answer.text


@pytest.mark.parametrize(
    ("action", "value"),
    [("reprioritize", "urgent"), ("reprioritize", "99999"), ("reschedule", "soon"), ("reschedule", "")],
)
def test_invalid_priority_or_time_of_a_bulk_action_is_rejected(page, database, action, value):
    send(database, "SELECT jobherd.enqueue('a:b', '{}')")
    answer = page.act("/jobs/action", action=action, all="1", value=value)
    assert answer.status_code == 400
    assert "The priority is" in answer.text or "The time is" in answer.text
    assert send(database, "SELECT count(*) FROM jobherd.bulks") == [(0,)]


def test_filter_has_all_nine_states(page):
    offered = re.findall(r'type="checkbox" name="state" value="(\w+)"', page.get("/jobs").text)
    assert sorted(offered) == [
        "blocked", "cancelled", "completed", "expired", "failed", "ready", "retrying", "running", "scheduled",
    ]  # fmt: skip


def tabs(answer):
    """Return the address of each state tab, and whether the tab is selected, by its text."""
    nav = re.search(r'<nav class="tabs".*?</nav>', answer.text, re.DOTALL)[0]
    found = re.findall(r'<a href="([^"]*)"( aria-current="true")?>(.*?)</a>', nav)
    return {
        " ".join(re.sub(r"<[^>]*>", "", words).split()): (html.unescape(to), bool(chosen))
        for to, chosen, words in found
    }


def test_state_tabs_show_counts_and_keep_the_other_conditions(page, database):
    fill(database)
    send(database, "INSERT INTO jobherd.ready (kind, attempts) SELECT 'a:b', 1 FROM generate_series(1, 3)")
    shown = tabs(page.get("/jobs"))
    assert list(shown) == [
        "all", "running 1", "ready 2", "retrying 4", "scheduled 1", "blocked 1", "failed 1", "cancelled 1", "expired 1", "completed",
    ]  # fmt: skip
    assert shown["all"] == ("/jobs", True)
    assert shown["failed 1"] == ("/jobs?state=failed", False)
    shown = tabs(page.get("/jobs?state=failed&kind=mail:receipt"))
    assert shown["failed"] == ("/jobs?state=failed&kind=mail%3Areceipt", True)
    assert shown["all"] == ("/jobs?kind=mail%3Areceipt", False)


def test_tab_counts_are_cached_for_all_viewers(page, database, monkeypatch):
    monkeypatch.setattr(jobs, "PERIOD", LIMIT)
    past(database, "failed")
    assert "failed 1" in tabs(page.get("/jobs"))
    past(database, "failed")
    assert "failed 1" in tabs(page.get("/jobs"))
    jobs._COUNTS.clear()
    assert "failed 2" in tabs(page.get("/jobs"))


def test_tab_counts_end_with_a_plus_sign_if_counting_stopped(page, database, monkeypatch):
    monkeypatch.setattr(jobs, "COUNTED", 20)
    send(database, "INSERT INTO jobherd.ready (kind) SELECT 'a:b' FROM generate_series(1, 30)")
    past(database, "failed", many=3)
    shown = tabs(page.get("/jobs"))
    assert "ready 20+" in shown
    assert "failed 2+" in shown
    assert "cancelled" in shown


def test_row_shows_the_payload_without_redacted_parts(page, database):
    send(database, 'SELECT jobherd.enqueue(\'mail:x\', \'{"to": "<b>ann</b>", "text": "%s"}\')' % ("long " * 100))
    send(database, 'SELECT jobherd.enqueue(\'card:charge\', \'{"card": "4111222233334444", "amount": 5}\')')
    send(database, """SELECT jobherd.enqueue('no:handler', '{"pin": "5555-6666"}')""")
    send(
        database,
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
        " VALUES ('card:charge', 'mail', 0, 5, 3, 7, 30, '[\"$.card\"]'), ('mail:x', 'mail', 0, 5, 3, 7, 30, '[]')",
    )
    text = page.get("/jobs").text
    assert "&lt;b&gt;ann&lt;/b&gt;" in text
    assert "<b>ann" not in text
    assert "long " * 40 not in text
    assert "«redacted»" in text
    assert "41112222" not in text
    assert "5555-66" not in text, "a payload of an undeclared kind must be hidden: its redacted paths are unknown"


def test_each_filter_condition_has_a_link_that_removes_it(page, database):
    past(database, "failed")
    text = page.get("/jobs?state=failed&kind=mail:receipt&since=24h").text
    chips = re.search(r'<ul class="chips".*?</ul>', text, re.DOTALL)[0]
    assert re.findall(r"<strong>(.*?)</strong>", chips) == ["mail:receipt", "24h"]
    assert [html.unescape(to) for to in re.findall(r'href="([^"]*)"', chips)] == [
        "/jobs?state=failed&since=24h",
        "/jobs?state=failed&kind=mail%3Areceipt",
    ]
    row = page.get("/jobs?state=failed").text
    assert 'href="/jobs?state=failed&amp;kind=mail%3Areceipt"' in row
    assert 'href="/jobs?state=failed&amp;queue=default"' in row


def test_search_also_matches_kinds_and_queues(page, database):
    number = past(database, "failed", kind="image:thumbnail", queue="media")
    waits = send(database, "SELECT jobherd.enqueue('image:thumbnail', '{}')")[0][0]
    assert listed(page.get("/jobs?q=thumb")) == [waits, number]
    assert listed(page.get("/jobs?q=medi")) == [number]


@pytest.mark.parametrize(
    ("asked", "hour"),
    [
        ("since=09:00", 9),
        ("since=yesterday 09:30&tz=Asia/Tokyo", 0),
        ("since=today", 0),
        ("since=yesterday&tz=No/Where", 0),
    ],
)
def test_filter_accepts_times_of_day_and_the_words_today_and_yesterday(asked, hour):
    wanted, problems = Wanted.read(QueryParams(asked))
    assert problems == {}
    assert wanted.is_relative
    since = wanted.parameters(datetime(2026, 3, 10, 12, 0, tzinfo=UTC))["since"]
    day = 9 if "yesterday" in asked else 10
    expected = {"since=yesterday 09:30&tz=Asia/Tokyo": datetime(2026, 3, 9, 0, 30, tzinfo=UTC)}
    assert since == expected.get(asked, datetime(2026, 3, day, hour, tzinfo=UTC))


def test_time_of_day_means_its_last_occurrence_and_timestamps_use_the_viewers_zone():
    now = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
    assert Wanted(since="23:15").parameters(now)["since"] == datetime(2026, 3, 9, 23, 15, tzinfo=UTC)
    read = Wanted.read(QueryParams("since=2026-03-01 08:00&tz=Europe/Berlin"))[0]
    assert read.parameters(now)["since"] == datetime(2026, 3, 1, 7, 0, tzinfo=UTC)
    assert "tz=Europe%2FBerlin" in read.query()
    assert Wanted.read(QueryParams("tz=Europe/Berlin"))[0].is_everything


def test_bulk_action_without_ticked_jobs_returns_to_the_filtered_list(page, database):
    past(database, "failed")
    answer = page.act_at("/jobs?state=failed", "/jobs/confirm", action="retry", state="failed")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")
    assert "tick the jobs first" in page.get("/jobs?state=failed").text
