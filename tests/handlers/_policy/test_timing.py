from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from jobherd.handlers._policy.timing import Timing, zone_of

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_period_is_anchored_to_its_start_or_to_1970():
    assert Timing(every=900).next(START + timedelta(seconds=1)) == START + timedelta(minutes=15)
    anchored = Timing(every=900, starts_at=START + timedelta(minutes=4))
    assert list(islice(anchored.after(START), 2)) == [START + timedelta(minutes=4), START + timedelta(minutes=19)]


def test_no_instant_is_outside_starts_at_and_ends_at():
    limited = Timing(cron="0 * * * *", starts_at=START, ends_at=START + timedelta(hours=2))
    assert list(limited.after(START - timedelta(days=9))) == [START + timedelta(hours=n) for n in range(3)]
    assert limited.next(START + timedelta(hours=2)) is None
    assert limited.between(START, START + timedelta(days=1), 10)[0] == 3
    assert Timing(every=60, ends_at=START + timedelta(minutes=5)).between(START, START + timedelta(days=1), 2) == (
        6,
        [START + timedelta(minutes=4), START + timedelta(minutes=5)],
    )


def test_long_outage_counts_each_instant_and_returns_only_the_last_ones():
    until = START + timedelta(days=30)
    assert Timing(every=1).between(START, until, 2) == (30 * 86400 + 1, [until - timedelta(seconds=1), until])
    assert Timing(cron="* * * * *").between(START, until, 1) == (30 * 1440 + 1, [until])
    assert Timing(every=60).between(until, START, 5) == (0, [])


def test_period_of_a_fraction_of_a_second_does_not_drift():
    found = list(islice(Timing(every=0.05).after(START), 40))
    assert found[-1] == START + timedelta(seconds=2)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../etc/passwd", "Europe", "", "\0"])
def test_error_for_an_unknown_time_zone_names_the_package_to_install(name: str):
    with pytest.raises(ValueError, match="not a known time zone") as caught:
        zone_of(name)
    assert "pip install 'jobherd[tz]'" in str(caught.value)
