from __future__ import annotations

import contextlib
import copy
import pickle

import pytest

from jobherd import (
    Abandon,
    Failed,
    JobCancelled,
    JobDrained,
    JobInterrupted,
    JobTimeout,
    Nack,
    Poison,
    Retry,
    Snooze,
)
from tests.handlers._run.test_classify import MEANINGS

EVERY = [said for said, _ in MEANINGS]


@pytest.mark.parametrize("said", EVERY, ids=repr)
def test_a_disposition_is_a_value_and_an_exception(said):
    again = copy.copy(said)
    assert again == said
    assert again is not said
    assert pickle.loads(pickle.dumps(said)) == said
    assert hash(again) == hash(said)
    with pytest.raises(type(said)) as caught:
        raise said
    assert caught.value is said


@pytest.mark.parametrize("said", EVERY, ids=repr)
def test_disposition_passes_through_exit_stacks_and_exception_groups(said):
    @contextlib.contextmanager
    def transaction():
        yield

    with pytest.raises(type(said)), contextlib.ExitStack() as stack:
        stack.enter_context(transaction())
        said.add_note("seen on the way")
        raise said
    with pytest.raises(ExceptionGroup):
        raise ExceptionGroup("several", [said])


def test_dispositions_of_different_types_or_values_differ():
    assert Nack(5) != Nack(6)
    assert Nack(5) != Retry(5)
    assert Snooze(5) != Nack(5)
    assert Failed("a") != Failed("a", code="X")
    assert Abandon() != None  # noqa: E711


def test_attributes_of_a_disposition_are_read_only():
    with pytest.raises(AttributeError, match=r"Nack.delay cannot be changed"):
        Nack(5).delay = 6


@pytest.mark.parametrize(
    ("said", "delay"), [(Nack("-5s"), 0), (Retry(-1), 0), (Snooze(-1e9), 0), (Nack("2m"), 120), (Nack(), None)]
)
@pytest.mark.promise("D21")
def test_delays_become_seconds_and_negative_ones_become_zero(said, delay):
    assert said.delay == delay


def test_retry_is_a_subclass_of_nack():
    assert isinstance(Retry(5), Nack)
    assert Retry(5).after == Retry(5).delay == 5
    assert repr(Retry("1m", "why")) == "Retry(after=60.0, reason='why')"


@pytest.mark.parametrize("make", [Nack, Retry, Snooze])
@pytest.mark.parametrize("wrong", [float("nan"), 10**400, "soon", object()])
@pytest.mark.promise("D23")
def test_invalid_delay_is_rejected_by_the_constructor(make, wrong):
    with pytest.raises((ValueError, TypeError), match=make.__name__):
        make(wrong)


def test_poison_has_the_text_of_an_exception_and_a_default_code():
    assert str(Poison("row 7 is gone")) == "row 7 is gone"
    assert Poison("x").code == "POISON"


def test_interruptions_are_not_caught_by_except_exception():
    for kind in (JobTimeout, JobCancelled, JobDrained):
        assert issubclass(kind, JobInterrupted)
        assert issubclass(kind, KeyboardInterrupt)
        assert not issubclass(kind, Exception)
