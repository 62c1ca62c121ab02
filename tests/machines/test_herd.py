"""Checks the invariants of the supervisor's policies in random sequences of events.

This test plays 300 sequences of moves. `make machines` makes a million moves.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machines.herd import NAMES, play

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 999)), min_size=20, max_size=80)


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(MOVES)
def test_supervisor_policies_hold_their_invariants_in_any_sequence_of_moves(moves):
    play(moves)
