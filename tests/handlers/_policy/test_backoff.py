from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd import Backoff
from jobherd.handlers._policy.backoff import check_backoff, wait
from jobherd.handlers._policy.durations import LONGEST


class Loaded:
    """Random numbers that are always the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.promise("A23", "A24")
def test_default_backoff_is_30_s_doubled_up_to_one_hour():
    even = Loaded(0.5)
    assert [Backoff().delay(n, even) for n in range(1, 10)] == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.promise("A25")
def test_default_jitter_is_20_percent_in_both_directions():
    assert Backoff().delay(1, Loaded(0.0)) == pytest.approx(24)
    assert Backoff().delay(1, Loaded(1 - 1e-12)) == pytest.approx(36)


def test_delays_at_the_cap_keep_their_jitter_and_never_exceed_it():
    waits = {Backoff().delay(50, random.Random(seed)) for seed in range(50)}
    assert len(waits) > 10
    assert max(waits) <= 3600
    assert min(waits) >= 3600 * 0.8


spans = st.floats(0, LONGEST, allow_nan=False)


@given(
    base=spans,
    factor=st.floats(1, 1e6),
    jitter=st.floats(0, 1),
    cap=spans,
    attempts=st.integers(-(10**30), 10**30),
    die=st.floats(0, 1, exclude_max=True),
)
def test_every_backoff_gives_a_finite_delay_from_zero_to_the_cap(base, factor, jitter, cap, attempts, die):
    backoff = Backoff(base=base, factor=factor, jitter=jitter, cap=cap)
    delay = backoff.delay(attempts, Loaded(die))
    assert math.isfinite(delay)
    assert 0 <= delay <= backoff.cap


@given(attempts=st.integers(1, 400))
def test_delays_without_jitter_never_shrink(attempts):
    backoff = Backoff(jitter=0)
    assert backoff.delay(attempts) <= backoff.delay(attempts + 1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"factor": 0.5}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": True}, "jitter"),
        ({"base": "soon"}, "base"),
        ({"cap": math.inf}, "cap"),
    ],
)
def test_error_names_the_invalid_backoff_field(wrong, field):
    with pytest.raises(ValueError, match=f"Backoff {field}"):
        Backoff(**wrong)


def test_backoff_is_an_immutable_value():
    assert Backoff("30s") == Backoff(30)
    assert hash(Backoff("30s")) == hash(Backoff())
    with pytest.raises(AttributeError):
        Backoff().base = 1


def test_backoff_list_repeats_its_last_delay():
    waits = check_backoff(["10s", 60, "-5s"], field="backoff")
    assert [wait(waits, n) for n in (0, 1, 2, 3, 4, 10**9)] == [10, 10, 60, 0, 0, 0]


def test_single_duration_is_the_delay_of_every_attempt():
    assert wait(check_backoff("5s", field="backoff"), 7) == 5


def test_backoff_function_receives_the_number_of_attempts():
    assert wait(check_backoff(lambda attempts: f"{attempts}m", field="backoff"), 3) == 180


@pytest.mark.parametrize("answer", [None, "soon", math.nan, -math.inf, object()])
def test_backoff_function_with_an_invalid_result_falls_back_to_the_default(answer):
    assert wait(lambda attempts: answer, 1, Loaded(0.5)) == 30


@pytest.mark.parametrize("problem", [ValueError, SystemExit, KeyboardInterrupt, RecursionError])
def test_backoff_function_that_raises_falls_back_to_the_default(problem):
    def broken(attempts):
        raise problem

    assert wait(broken, 2, Loaded(0.5)) == 60


def test_negative_delay_of_a_backoff_function_becomes_zero():
    assert wait(lambda attempts: -5, 1) == 0


@pytest.mark.parametrize(
    ("given_value", "text"), [([], "backoff is an empty list"), (["1s", "x"], r"backoff\[1\]"), (None, "backoff")]
)
def test_invalid_backoff_is_rejected(given_value, text):
    with pytest.raises((ValueError, TypeError), match=text):
        check_backoff(given_value, field="backoff")
