"""The tables of the policies answer everything: each state, event, stage and reason has its row."""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.run_state import AFTER_QUIT, AFTER_SIGNAL, AFTER_STOP, RunState
from jobherd.supervisor.policy.slot import TRANSITIONS, SlotEvent, State
from jobherd.supervisor.policy.stop_sequence import OVERRIDES, STAGES, Stage, StopReason, StopSequence, advance, begin
from jobherd.supervisor.policy.stopping import ENDS
from jobherd.workers.ipc.current_work import Interruption, Reason


def test_each_state_of_a_slot_answers_each_event():
    assert set(TRANSITIONS) == set(State)
    assert {state: set(answers) for state, answers in TRANSITIONS.items()} == dict.fromkeys(State, set(SlotEvent))
    assert {state for answers in TRANSITIONS.values() for state in answers.values()} == set(State), "each is reached"


def test_only_a_fork_fills_a_slot_and_an_exit_always_empties_it():
    for event in set(SlotEvent) - {SlotEvent.FORKED}:
        assert TRANSITIONS[State.EMPTY][event] is State.EMPTY
    assert {TRANSITIONS[state][SlotEvent.EXITED] for state in State} == {State.EMPTY}


def test_a_dismissed_child_is_never_ready_again():
    assert TRANSITIONS[State.LEAVING][SlotEvent.LOADED] is State.LEAVING


def test_each_stage_of_the_stop_sequence_has_a_rule_and_none_comes_before_the_one_before_it():
    assert set(STAGES) == set(Stage)
    assert [rule.graces for rule in STAGES.values()] == sorted(rule.graces for rule in STAGES.values())
    assert list(STAGES) == sorted(Stage, key=lambda stage: stage.value)


def test_each_reason_to_stop_has_a_rule_for_its_start_and_one_for_its_end():
    assert set(OVERRIDES) == set(StopReason)
    assert set(ENDS) == set(StopReason)


def test_each_phase_answers_each_signal_to_stop_and_never_goes_back():
    assert set(AFTER_STOP) == set(AFTER_QUIT) == set(RunState)
    assert set(AFTER_SIGNAL) == {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
    for table in AFTER_SIGNAL.values():
        assert all(after.value >= before.value for before, after in table.items())


def stops(why=StopReason.CANCEL, since=100.0, grace=5.0, stage=Stage.REQUESTED):
    return StopSequence(why, since, 9, 5, stage, grace)


def test_the_steps_of_a_sequence():
    sequence, steps, due = advance(stops(), 100.0)
    assert (sequence.stage, steps, due) == (Stage.INTERRUPTED, [Interruption(Reason.CANCEL, 9, 5)], 105.0)
    assert advance(sequence, 104.9) == (sequence, [], 105.0)
    sequence, steps, due = advance(sequence, 105.0)
    assert (sequence.stage, steps, due) == (Stage.TERMINATED, [signal.SIGTERM], 110.0)
    sequence, steps, due = advance(sequence, 110.0)
    assert (sequence.stage, steps, due) == (Stage.KILLED, [signal.SIGKILL], float("inf"))
    assert advance(sequence, 1000.0) == (sequence, [], float("inf"))


def test_a_late_step_replaces_the_ones_before_it():
    assert advance(stops(), 1000.0)[1] == [Interruption(Reason.CANCEL, 9, 5), signal.SIGKILL]
    assert advance(stops(StopReason.SPAWN, grace=0.0), 100.0)[1] == [signal.SIGKILL], "it runs no job"


@pytest.mark.parametrize("why", StopReason)
def test_what_has_no_sequence_gets_the_wanted_one(why):
    assert begin(None, stops(why)) == stops(why)


def test_a_sequence_is_only_replaced_by_one_that_ends_earlier():
    current = stops(StopReason.TIMEOUT)
    assert begin(current, stops(StopReason.DRAIN, since=101.0)) is current
    earlier = stops(StopReason.QUIT, since=101.0, grace=0.0)
    assert begin(current, earlier) is earlier
    killed = stops(StopReason.TIMEOUT, stage=Stage.KILLED)
    assert begin(killed, earlier) is killed, "SIGKILL was sent already"


def test_a_cancellation_becomes_a_timeout_at_the_deadline_until_it_has_sent_a_signal():
    timeout = stops(StopReason.TIMEOUT, since=103.0, stage=Stage.INTERRUPTED)
    assert begin(stops(stage=Stage.INTERRUPTED), timeout) is timeout
    terminated = stops(stage=Stage.TERMINATED)
    assert begin(terminated, timeout) is terminated
