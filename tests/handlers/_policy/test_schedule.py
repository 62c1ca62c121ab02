from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobherd import Job, Schedule, handler


def test_schedule_definition_contains_only_options_that_differ_from_the_defaults():
    one = Schedule(
        "feed", every="15m", payload={"a": 1}, jitter="30s", pause_after=3, starts_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert one.definition("feed:poll") == {
        "name": "feed", "kind": "feed:poll", "cron": None, "every": 900.0, "tz": "UTC", "payload": {"a": 1},
        "options": {"jitter": 30.0, "pause_after": 3, "starts_at": "2026-01-01T00:00:00+00:00"},
    }  # fmt: skip
    assert Schedule("x", cron="@daily").definition("a:b")["options"] == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs cron or every"),
        ({"cron": "@daily", "every": 60}, "needs cron or every"),
        ({"cron": "61 * * * *"}, "minute must be from 0 to 59"),
        ({"every": 0.5}, "must be at least 1 s"),
        ({"every": 60, "tz": "Berlin"}, "pip install 'jobherd[tz]'"),
        ({"every": 60, "overlap": "never"}, "must be one of 'allow', 'skip', 'queue', 'replace'"),
        ({"every": 60, "pause_after": 0}, "pause_after of schedule 'feed' must be a whole number from 1 to 32767"),
        ({"every": 60, "misfire": "twice"}, "must be one of 'skip', 'one', 'all'"),
        ({"every": "5000w"}, "every of schedule 'feed' must be less than 3,000,000,000 s"),
        ({"every": 60, "payload": {"a": "x" * 100_000}}, "payload of schedule 'feed' has 100,009 bytes as JSON"),
        ({"every": 60, "payload": {"a": {1}}}, "payload of schedule 'feed' must be valid JSON"),
        ({"every": 60, "payload": {"a": "{now}"}}, "is not a template"),
        ({"every": 60, "payload": {"a": "{missed:%d}"}}, "is not a template"),
        ({"every": 60, "payload": {"a": "an open {"}}, "is not a template"),
        ({"every": 60, "starts_at": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)}, "with a time zone"),
        (
            {"every": 60, "starts_at": datetime(2026, 1, 2, tzinfo=UTC), "ends_at": datetime(2026, 1, 1, tzinfo=UTC)},
            "no instant between",
        ),
    ],
)
def test_error_for_an_invalid_schedule_names_the_problem_or_the_fix(given, says):
    with pytest.raises((ValueError, TypeError)) as caught:
        Schedule("feed", **given)
    assert says in str(caught.value)


def test_handler_has_its_own_schedule_and_additional_ones():
    @handler(
        "report:daily", cron="0 3 * * MON-FRI", tz="Europe/Berlin", schedules=[Schedule("now-and-then", every="2d")]
    )
    def daily(job: Job, day: str = "") -> None: ...

    assert [(one.name, one.cron, one.tz) for one in daily.schedules] == [
        ("report:daily", "0 3 * * MON-FRI", "Europe/Berlin"),
        ("now-and-then", None, "UTC"),
    ]


def test_schedule_payload_that_does_not_fit_the_handler_fails_at_the_decorator():
    with pytest.raises(TypeError, match="schedule 'poll:feed': .*region"):

        @handler("poll:feed", every="1m")
        def poll(region: str) -> None: ...


def test_schedule_names_are_unique_and_cron_every_and_encryption_exclude_each_other():
    with pytest.raises(ValueError, match="two schedules with the name 'a'"):
        handler("x:y", schedules=[Schedule("a", every=1), Schedule("a", every=2)])
    with pytest.raises(ValueError, match="exclude each other"):
        handler("x:y", cron="@daily", every="1d")
    with pytest.raises(ValueError, match="stored unencrypted"):
        handler("x:y", cron="@daily", encrypt="only")
