"""The job's states are what the model says, whatever is asked in whichever order.

Shrinking asks the server for minutes, so it is left to `python -m tests.machines --queue`, which
also takes seeds of one's own.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.machines.queue import NAMES, play
from tests.support.queue import Queue

MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9999)), min_size=40, max_size=80)


def test_whatever_is_asked(database):
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
