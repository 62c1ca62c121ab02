"""The bookkeeping of the uplink holds whatever dies, breaks and overtakes.

A few hundred sequences of moves here, a million moves by `python -m tests.machines --uplink`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machines.uplink import NAMES, play

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=60, max_size=250)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(MOVES)
def test_whatever_happens(moves):
    play(moves)
