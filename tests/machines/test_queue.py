"""Compares the states of jobs with a model in random sequences of moves.

To shrink a sequence takes minutes of statements, so only `python -m tests.machines --queue` does it, which
also takes a seed.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.machines.queue import NAMES, play
from tests.support.queue import Queue

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=40, max_size=80)


def test_job_states_match_the_model_in_any_sequence_of_moves(database):
    @settings(
        max_examples=30,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(MOVES)
    def played(moves):
        play(queue, moves)

    with Queue(database) as queue:
        played()
