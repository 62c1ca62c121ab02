"""The parent's policies hold whatever happens.

A few thousand sequences of moves here, a million moves by `make machines`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machines.herd import NAMES, play

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 999)), min_size=20, max_size=80)


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(MOVES)
def test_whatever_happens(moves):
    play(moves)
