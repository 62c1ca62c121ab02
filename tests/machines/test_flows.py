"""Compares flows with a model in random sequences of moves.

`python -m tests.machines --flows` makes more moves, takes a seed, and reduces a sequence that fails.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.machines.flows import NAMES, play
from tests.support.queue import Queue

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=40, max_size=80)


def test_flows_match_the_model_in_any_sequence_of_moves(database):
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
