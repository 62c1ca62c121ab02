"""Checks the invariants of the uplink's bookkeeping while processes die, streams break and messages overtake.

This test plays 60 sequences of moves. `python -m tests.machines --uplink` makes a million moves.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machines.uplink import NAMES, play

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=60, max_size=250)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(MOVES)
def test_uplink_bookkeeping_holds_its_invariants_in_any_sequence_of_moves(moves):
    play(moves)
