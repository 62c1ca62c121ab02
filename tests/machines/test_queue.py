"""The job's states are what the model says, whatever is asked in whichever order. Seeds of one's own: `python -m tests.machines --queue`."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machines.queue import NAMES, play
from tests.support.queue import Queue

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=5, max_size=60)


def test_whatever_is_asked(database):
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(MOVES)
    def played(moves):
        play(queue, moves)

    with Queue(database) as queue:
        played()
