"""The pages of schedules: timing, instants, pauses, edits and actions."""

from __future__ import annotations

from datetime import UTC
from html import unescape
from urllib.parse import parse_qsl

import pytest

from jobherd.workers.dashboard import application, schedules
from tests.cli.rows import send
from tests.dashboard.support import W01, Page


def add(dsn, name="feed", kind="feed:poll", **options):
    given = {"cron": None, "every": None, "tz": None} | options
    send(
        dsn,
        "SELECT jobherd.schedule(%s, %s, cron => %s, every => %s, tz => %s, actor => 'anna')",
        name,
        kind,
        *given.values(),
    )


def planned(dsn, after="1 h"):
    """Plan all schedules like a maintenance process."""
    send(
        dsn,
        "UPDATE jobherd.schedules SET next_at = date_trunc('minute', now()) + %s::interval, plan_from = NULL, revision = revision + 1",
        after,
    )


def tick(dsn, decided, *, job=None, missed=0, because=None, ago="1 min", since=None, noted="1 min"):
    send(
        dsn,
        "INSERT INTO jobherd.ticks (schedule, at, since, decided, job, missed, because, noted_at)"
        " VALUES ('feed', now() - %s::interval, now() - %s::interval, %s, %s, %s, %s, now() - %s::interval)",
        ago, since, decided, job, missed, because, noted,
    )  # fmt: skip


def row_of(text, name):
    """Return the table row of a schedule."""
    return text.partition(f">{name}</a></th>")[2].partition("</tr>")[0]


def test_page_without_schedules_shows_how_to_add_one(page):
    assert "jobherd schedule add" in page.get("/schedules").text


def test_list_shows_the_timing_in_words_the_zone_and_the_next_instant(page, database):
    add(database, cron="0 3 * * MON-FRI", tz="Europe/Berlin")
    add(database, "often", every="90 s")
    planned(database)
    text = page.get("/schedules").text
    feed = row_of(text, "feed")
    assert "at 03:00, Monday to Friday" in feed
    assert "Europe/Berlin" in feed
    assert 'href="/kinds/feed%3Apoll"' in feed
    assert "<time" in feed
    assert "none yet" in feed
    assert "no handler known" in feed
    assert "every 1 min 30 s" in row_of(text, "often")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"decided": "ran", "job": 4, "missed": 2, "noted": "0 s", "ago": "5 min"}, ["not kept", 'href="/jobs/4"', "5 min late, stands for 3 instants"]),
        ({"decided": "manual", "job": 4}, ["a user asked for it"]),
        ({"decided": "held", "because": 3}, ["waiting", 'until <a href="/jobs/3">job 3</a> has finished']),
        ({"decided": "missed", "missed": 4, "since": "1 h"}, ["missed", "no maintenance process ran for 5 instants since <time"]),
        ({"decided": "overlapped", "because": 3}, ["overlapped", "job 3</a> had not finished"]),
        ({"decided": "merged", "because": 3}, ["merged", "into another instant"]),
        ({"decided": "paused"}, ["the schedule was paused for 1 instant"]),
        ({"decided": "retired"}, ["no handler declared the schedule"]),
        ({"decided": "edited"}, ["its timing was edited"]),
    ],
)  # fmt: skip
def test_pages_explain_what_was_decided_about_an_instant(page, database, given, shown):
    add(database, every="1 h")
    tick(database, **given)
    for path in ("/schedules", "/schedules/feed"):
        text = page.get(path).text
        for part in shown:
            assert part in text, path


def test_schedule_shows_the_state_of_its_job_and_the_job_links_to_the_schedule(page, database):
    add(database, every="1 h")
    [(job,)] = send(database, "SELECT jobherd.enqueue('feed:poll')")
    tick(database, "ran", job=job)
    text = page.get("/schedules/feed").text
    assert "state-ready" in text
    shown = page.get(f"/jobs/{job}").text
    assert '<dt>Schedule</dt><dd><a href="/schedules/feed">feed</a>, for <time' in shown
    [(other,)] = send(database, "SELECT jobherd.enqueue('feed:poll')")
    assert "<dt>Schedule</dt>" not in page.get(f"/jobs/{other}").text


def test_list_shows_the_state_of_each_schedule_with_its_reason(page, database):
    for name in ("sound", "late", "broken", "gone", "stopped", "fails"):
        add(database, name, cron="0 3 * * *")
    planned(database)
    send(database, "UPDATE jobherd.schedules SET next_at = now() - interval '2 min' WHERE name = 'late'")
    send(database, "UPDATE jobherd.schedules SET error = 'no such zone' WHERE name = 'broken'")
    send(database, "UPDATE jobherd.schedules SET retired_at = now() WHERE name = 'gone'")
    send(database, "SELECT jobherd.pause_schedule('stopped', 'too many', now() + interval '1 h', actor => 'bert')")
    send(
        database,
        "UPDATE jobherd.schedules SET paused_at = now(), paused_by = 'maintenance', pause_reason = '3 failed runs in a row'"
        " WHERE name = 'fails'",
    )
    text = page.get("/schedules").text
    assert "state-active" in row_of(text, "sound")
    assert "state-failing" in row_of(text, "fails")
    assert "3 failed runs in a row" in row_of(text, "fails")
    assert 'value="resume"' in row_of(text, "fails")
    assert "no maintenance process has enqueued its job" in row_of(text, "late")
    assert "no such zone" in row_of(text, "broken")
    assert "no handler has declared it since" in row_of(text, "gone")
    stopped = row_of(text, "stopped")
    assert "by bert" in stopped
    assert "too many" in stopped
    assert "until <time" in stopped
    assert "They do not run while the schedule has the state paused" in page.get("/schedules/stopped").text


def test_schedule_shows_its_next_instants_in_its_zone(page, database):
    add(database, cron="0 3 * * *", tz="Asia/Tokyo")
    text = page.get("/schedules/feed").text
    assert text.count(" 03:00:00 JST") == schedules.UPCOMING
    send(
        database, "UPDATE jobherd.schedules SET next_at = date_trunc('day', now(), 'UTC') + interval '1 day 4 h 30 min'"
    )
    text = page.get("/schedules/feed").text
    assert text.count(" 13:30:00 JST") == 1, "the planned instant must be listed, too"
    assert text.count(" 03:00:00 JST") == schedules.UPCOMING - 1


def test_schedule_with_an_invalid_cron_or_zone_does_not_break_the_pages(page, database):
    send(database, "SELECT jobherd.schedule('feed', 'a:b', cron => '61 * * * *'), "
                   "jobherd.schedule('zone', 'a:b', cron => '* * * * *', tz => 'Mars/Olympus')")  # fmt: skip
    assert page.get("/schedules").status_code == 200
    assert "minute must be from 0 to 59" in page.get("/schedules/feed").text
    assert "not a known time zone" in page.get("/schedules/zone").text


def test_payload_is_shown_without_redacted_parts(page, database):
    send(
        database,
        "SELECT jobherd.schedule('feed', 'a:b', every => '1 h', payload => '{\"card\": \"4711-0815\", \"n\": 1}')",
    )
    assert "4711-08" in page.get("/schedules/feed").text
    send(database, "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
                   " VALUES ('a:b', 'default', 0, 5, 3, 7, 30, '[\"$.card\"]')")  # fmt: skip
    page.app.state.redactions._until = -float("inf")
    assert "4711-08" not in page.get("/schedules/feed").text


def noted(dsn):
    return send(
        dsn, "SELECT actor, action, target ->> 'schedule', reason FROM jobherd.audit WHERE actor <> 'anna' ORDER BY id"
    )


@pytest.mark.parametrize(
    ("fields", "said", "note"),
    [
        ({"do": "run"}, "Schedule feed runs once now.", ("run schedule", "feed", None)),
        ({"do": "pause", "reason": "down", "for": "30m"}, "Schedule feed is paused.", ("pause schedule", "feed", "down")),
        ({"do": "pause", "for": "soon"}, "the time", None),
        ({"do": "pause", "for": "-5s"}, "the time must be more than 0 seconds", None),
        ({"do": "resume"}, "Schedule feed was not paused.", None),
        ({"do": "backfill", "from": "2020-01-01T00:00", "parallel": "1"}, "is not possible", None),
        ({"do": "backfill", "from": "soon", "parallel": "1"}, "A time must be written like", None),
        ({"do": "backfill", "from": "2020-01-01T00:00", "parallel": "many"}, "must be a whole number", None),
        ({"do": "reset"}, "no handler declares schedule feed", None),
        ({"do": "delete"}, "Schedule feed is deleted.", ("unschedule", "feed", None)),
        ({"do": "pause", "name": "none"}, "there is no schedule", None),
        ({"do": "delete", "name": "none"}, "Schedule none does not exist.", None),
        ({"do": "dance"}, "Choose an action", None),
    ],
)  # fmt: skip
def test_action_shows_a_message_and_each_change_gets_an_audit_entry(page, database, fields, said, note):
    add(database, every="1 h")
    shown = page.act("/schedules/action", follow=True, **{"name": "feed", **fields})
    assert said.lower() in shown.text.lower()
    assert noted(database) == ([("dashboard", *note)] if note else [])


def test_pause_has_an_end_and_a_button_resumes_earlier(page, database):
    add(database, every="1 h")
    page.act("/schedules/action", name="feed", do="pause", **{"for": "30m"})
    assert send(
        database, "SELECT resume_at - paused_at BETWEEN interval '29 min' AND interval '31 min' FROM jobherd.schedules"
    ) == [(True,)]
    assert 'value="resume"' in row_of(page.get("/schedules").text, "feed")
    assert "is resumed" in page.act("/schedules/action", follow=True, name="feed", do="resume").text
    assert "audit" in page.get("/audit").text
    assert '<a href="/schedules/feed">schedule feed</a>' in page.get("/audit").text


def test_backfill_form_reads_its_start_as_utc(page, database):
    add(database, every="1 h")
    [(start,)] = send(database, "SELECT date_trunc('minute', now() - interval '1 day')")
    given = start.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")
    said = page.act("/schedules/action", follow=True, name="feed", do="backfill", parallel="4", **{"from": given}).text
    assert "runs its instants that have no job, at most 4 at a time" in said
    assert send(
        database, "SELECT (backfill ->> 'from')::timestamptz, (backfill ->> 'parallel')::int FROM jobherd.schedules"
    ) == [(start, 4)]


def test_edit_form_previews_a_new_timing_before_it_is_stored(page, database):
    add(database, every="1 h")
    text = page.get("/schedules/feed/edit").text
    assert 'value="3600.0"' in text
    assert "It would run" not in text
    text = page.get("/schedules/feed/edit?cron=30+4+*+*+*&every=&tz=Asia/Tokyo").text
    assert "It would run at 04:30, every day" in text
    assert text.count(" 04:30:00 JST") == schedules.UPCOMING
    assert send(database, "SELECT cron FROM jobherd.schedules") == [(None,)]
    stored = page.act("/schedules/feed/edit/action", follow=True, cron="30 4 * * *", tz="Asia/Tokyo", reason="at night")
    assert "Schedule feed is changed." in stored.text
    assert send(database, "SELECT cron, every, tz FROM jobherd.schedules") == [("30 4 * * *", None, "Asia/Tokyo")]
    assert noted(database) == [("dashboard", "schedule", "feed", "at night")]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("cron=61+*+*+*+*", "minute must be from 0 to 59"),
        ("cron=&every=", "Fill in the cron expression or the period, and not both"),
        ("cron=@daily&every=1h", "Fill in the cron expression or the period, and not both"),
        ("every=soon", "the period is not a duration"),
        ("every=0.5s", "the period must be at least 1 s"),
        ("every=1h&tz=Mars", "is not a known time zone"),
        ("cron=%00", "Fill in"),
    ],
)
def test_invalid_timing_is_rejected_with_a_reason(page, database, query, says):
    add(database, every="1 h")
    answer = page.get(f"/schedules/feed/edit?{query}")
    assert answer.status_code == 422
    assert says in unescape(answer.text)
    assert "Store" not in answer.text
    fields = dict(parse_qsl(query.replace("%00", "")))
    assert says in unescape(page.act("/schedules/feed/edit/action", follow=True, **fields).text)
    assert send(database, "SELECT every FROM jobherd.schedules") == [(3600,)]


def test_timing_of_a_missing_schedule_cannot_be_edited(page, database):
    assert page.get("/schedules/none/edit").status_code == 404
    assert (
        "Schedule none does not exist any more" in page.act("/schedules/none/edit/action", follow=True, every="1h").text
    )


def hide(page, database):
    """Declare that the kind redacts the field `card`."""
    send(database, "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
                   " VALUES ('feed:poll', 'default', 0, 5, 3, 7, 30, '[\"$.card\"]')")  # fmt: skip
    page.app.state.redactions._until = -float("inf")


def payloads(dsn):
    return send(dsn, "SELECT payload, every, tz FROM jobherd.schedules")


def test_payload_edit_keeps_redacted_values(page, database):
    add(database, every="1 h", tz="Asia/Tokyo")
    send(database, """UPDATE jobherd.schedules SET payload = '{"card": "4711-0815", "n": 1}'""")
    hide(page, database)
    assert 'href="/schedules/feed/payload"' in page.get("/schedules/feed").text
    shown = page.get("/schedules/feed/payload").text
    assert "4711-08" not in shown
    assert "redacted" in shown
    edited = '{"card": "«redacted»", "n": 2, "day": "{scheduled_for:%Y-%m-%d}"}'
    said = page.act("/schedules/feed/payload/action", follow=True, payload=edited, reason="more")
    assert "Schedule feed is changed." in said.text
    assert payloads(database) == [
        ({"card": "4711-0815", "n": 2, "day": "{scheduled_for:%Y-%m-%d}"}, 3600, "Asia/Tokyo")
    ]
    assert noted(database) == [("dashboard", "schedule", "feed", "more")]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"n": }', "This is not JSON: Expecting value, in line 1, column 7."),
        ("[1]", "the payload must be a dict"),
        ('{"day": "{today}"}', "'{today}' is not a template"),
        ('{"n": "«redacted»"}', "does not replace a hidden value"),
        ('{"n": NaN}', "the payload"),
        ('{"n": "' + "x" * 100_000 + '"}', "store the data elsewhere"),
    ],
)
def test_invalid_payload_is_rejected_with_a_reason_and_stays_in_the_form(page, database, payload, says):
    add(database, every="1 h")
    send(database, """UPDATE jobherd.schedules SET payload = '{"card": "{4711-0815}"}'""")
    hide(page, database)
    answer = page.act("/schedules/feed/payload/action", payload=payload)
    text = unescape(answer.text)
    assert answer.status_code == 422
    assert says in text
    assert payload in text
    assert "4711-08" not in text
    assert payloads(database) == [({"card": "{4711-0815}"}, 3600, "UTC")]


def test_payload_of_a_missing_schedule_cannot_be_edited(page):
    assert page.get("/schedules/none/payload").status_code == 404
    assert page.act("/schedules/none/payload/action", payload="{}").status_code == 404


def test_only_a_schedule_that_a_user_has_edited_can_be_reset(page, database):
    add(database, every="1 h")
    assert 'value="reset"' not in page.get("/schedules/feed").text
    send(database, 'UPDATE jobherd.schedules SET declared = \'{"kind": "a:b"}\'')
    text = page.get("/schedules/feed").text
    assert 'value="reset"' in text
    assert "edited by anna" in text
    assert "the next worker that starts stores it again" in text


def test_list_shows_a_note_if_it_has_only_the_first_schedules(page, database, monkeypatch):
    monkeypatch.setattr(schedules, "MOST", 1)
    add(database, every="1 h")
    assert "Only the first" not in page.get("/schedules").text
    add(database, "other", every="1 h")
    assert "Only the first 1 schedules" in page.get("/schedules").text


def test_missing_schedule_is_not_found(page):
    for name in ("none", "%00", "a%2Fb"):
        assert page.get(f"/schedules/{name}").status_code == 404


def test_read_only_pages_have_no_forms_and_reject_actions(database):
    add(database, every="1 h")
    with Page(application(database, read_only=True)) as page:
        for path in ("/schedules", "/schedules/feed"):
            assert "/schedules/action" not in page.get(path).text
            assert "/edit" not in page.get(path).text
            assert "/schedules/feed/payload" not in page.get(path).text
        assert page.get("/schedules/feed/edit").status_code == 403
        assert page.get("/schedules/feed/payload").status_code == 403
        assert page.act("/schedules/feed/payload/action", payload="{}").status_code == 403
        assert page.act("/schedules/action", name="feed", do="pause").status_code == 403
    assert send(database, "SELECT paused_at FROM jobherd.schedules") == [(None,)]


@pytest.mark.parametrize("text", W01)
def test_pages_escape_reasons_actors_errors_and_payloads(page, database, text):
    add(database, every="1 h")
    send(database, "SELECT jobherd.pause_schedule('feed', %s, actor => %s)", text, text)
    send(database, "UPDATE jobherd.schedules SET error = %s, payload = jsonb_build_object('a', %s::text)", text, text)
    send(database, "SELECT jobherd.schedule('other', 'a:b', every => '1 h', actor => %s)", text)
    for path in ("/schedules", "/schedules/feed", "/schedules/other"):
        answer = page.get(path)
        assert answer.status_code == 200
        for breach in ("<script>alert", "<img src=x", "<svg/onload", "<b>bold"):
            assert breach not in answer.text
