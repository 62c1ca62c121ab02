from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd.handlers._policy.durations import LONGEST, at_least_zero, positive, seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("10m", 600),
        ("500ms", 0.5),
        ("1h30m", 5400),
        (" 1h 30m ", 5400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("-5s", -5),
        ("90", 90),
        ("-1.5", -1.5),
        (90, 90),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
        (timedelta(seconds=-3), -3),
    ],
)
def test_duration_is_read_in_every_form(written, meant):
    assert seconds(written, field="delay") == pytest.approx(meant)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "-",
        "m",
        "10 minutes",
        "10m5",
        "1e9s",
        "nan",
        "inf",
        "10m\0",
        "1h-30m",
        "1_000",
        "10M",
        "٣s",
        "9" * 5000,
        "1s" * 5 + "x",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_invalid_duration_error_names_the_field_and_an_example(written):
    with pytest.raises(ValueError, match="delay") as caught:
        seconds(written, field="delay")
    assert "10m" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "written", [float("nan"), float("inf"), -float("inf"), 10**400, 1e300, "999999w", LONGEST * 1.01, timedelta.max]
)
def test_duration_of_more_than_100_years_is_rejected(written):
    with pytest.raises(ValueError, match="delay is out of range"):
        seconds(written, field="delay")


@pytest.mark.parametrize("written", [None, True, b"10m", [10], Fraction(1, 2), object()])
def test_duration_of_another_type_is_rejected(written):
    with pytest.raises(TypeError, match="delay is not a duration"):
        seconds(written, field="delay")


def test_at_least_zero_turns_a_negative_duration_into_zero():
    assert at_least_zero("-5s", field="delay") == 0
    assert at_least_zero(5, field="delay") == 5


@pytest.mark.parametrize("written", [0, "0s", -1])
def test_timeout_of_zero_or_less_is_rejected(written):
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        positive(written, field="timeout")


@given(st.text())
def test_every_text_gives_seconds_or_a_value_error(text):
    try:
        span = seconds(text, field="delay")
    except ValueError as problem:
        assert "delay" in str(problem)
    else:
        assert -LONGEST <= span <= LONGEST


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_parts_of_a_duration_add_up(hours, minutes, secs):
    assert seconds(f"{hours}h{minutes}m{secs}s", field="x") == hours * 3600 + minutes * 60 + secs
