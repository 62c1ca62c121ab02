"""The tables of the policies are complete: each state, event, stage and reason has its row."""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.run_state import AFTER_QUIT, AFTER_SIGNAL, AFTER_STOP, RunState
from jobherd.supervisor.policy.slot import TRANSITIONS, SlotEvent, State
from jobherd.supervisor.policy.stop_sequence import OVERRIDES, STAGES, Stage, StopReason, StopSequence, advance, begin
from jobherd.supervisor.policy.stopping import ENDS
from jobherd.workers.ipc.current_work import Interruption, Reason


def test_slot_transitions_cover_each_state_and_event():
    assert set(TRANSITIONS) == set(State)
    assert {state: set(answers) for state, answers in TRANSITIONS.items()} == dict.fromkeys(State, set(SlotEvent))
    assert {state for answers in TRANSITIONS.values() for state in answers.values()} == set(State), (
        "each state can be reached"
    )


def test_only_a_fork_fills_a_slot_and_an_exit_always_empties_it():
    for event in set(SlotEvent) - {SlotEvent.FORKED}:
        assert TRANSITIONS[State.EMPTY][event] is State.EMPTY
    assert {TRANSITIONS[state][SlotEvent.EXITED] for state in State} == {State.EMPTY}


def test_dismissed_child_is_never_ready_again():
    assert TRANSITIONS[State.LEAVING][SlotEvent.LOADED] is State.LEAVING


def test_each_stage_of_the_stop_sequence_has_a_rule_in_order_of_time():
    assert set(STAGES) == set(Stage)
    assert [rule.graces for rule in STAGES.values()] == sorted(rule.graces for rule in STAGES.values())
    assert list(STAGES) == sorted(Stage, key=lambda stage: stage.value)


def test_each_reason_to_stop_has_a_rule_for_its_start_and_one_for_its_end():
    assert set(OVERRIDES) == set(StopReason)
    assert set(ENDS) == set(StopReason)


def test_each_run_state_has_a_rule_for_each_stop_signal_and_never_goes_back():
    assert set(AFTER_STOP) == set(AFTER_QUIT) == set(RunState)
    assert set(AFTER_SIGNAL) == {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
    for table in AFTER_SIGNAL.values():
        assert all(after.value >= before.value for before, after in table.items())


def stops(why=StopReason.CANCEL, since=100.0, grace=5.0, stage=Stage.REQUESTED):
    return StopSequence(why, since, 9, 5, stage, grace)


def test_stop_sequence_interrupts_then_terminates_then_kills():
    sequence, steps, due = advance(stops(), 100.0)
    assert (sequence.stage, steps, due) == (Stage.INTERRUPTED, [Interruption(Reason.CANCEL, 9, 5)], 105.0)
    assert advance(sequence, 104.9) == (sequence, [], 105.0)
    sequence, steps, due = advance(sequence, 105.0)
    assert (sequence.stage, steps, due) == (Stage.TERMINATED, [signal.SIGTERM], 110.0)
    sequence, steps, due = advance(sequence, 110.0)
    assert (sequence.stage, steps, due) == (Stage.KILLED, [signal.SIGKILL], float("inf"))
    assert advance(sequence, 1000.0) == (sequence, [], float("inf"))


def test_overdue_sigkill_replaces_sigterm_but_not_the_interrupt():
    assert advance(stops(), 1000.0)[1] == [Interruption(Reason.CANCEL, 9, 5), signal.SIGKILL]
    assert advance(stops(StopReason.SPAWN, grace=0.0), 100.0)[1] == [signal.SIGKILL], (
        "a process that is starting has no job to interrupt"
    )


@pytest.mark.parametrize("why", StopReason)
def test_stop_sequence_begins_if_there_is_none(why):
    assert begin(None, stops(why)) == stops(why)


def test_stop_sequence_is_replaced_only_by_one_that_ends_earlier():
    current = stops(StopReason.TIMEOUT)
    assert begin(current, stops(StopReason.DRAIN, since=101.0)) is current
    earlier = stops(StopReason.QUIT, since=101.0, grace=0.0)
    assert begin(current, earlier) is earlier
    killed = stops(StopReason.TIMEOUT, stage=Stage.KILLED)
    assert begin(killed, earlier) is killed, "SIGKILL was sent already"


def test_timeout_replaces_a_cancellation_that_has_not_sent_a_signal_yet():
    timeout = stops(StopReason.TIMEOUT, since=103.0, stage=Stage.INTERRUPTED)
    assert begin(stops(stage=Stage.INTERRUPTED), timeout) is timeout
    terminated = stops(stage=Stage.TERMINATED)
    assert begin(terminated, timeout) is terminated
