"""Tests which statement records which results."""

from __future__ import annotations

import pytest

from jobherd.workers.gateway.settlements import MOST_RESULTS, Result, batches_that_fit, plan_transaction
from jobherd.workers.gateway.state import State
from tests.workers.gateway.standing import NOW, jobs, open_stream


def holding(**claims: range) -> State:
    state = open_stream()
    for name, ids in claims.items():
        state.enter(state.sessions[7], int(name[1:]), jobs(*ids), 60.0, NOW)
    return state


def results(claim: int, ids, *, plain: bool = True, session: int = 7) -> list[Result]:
    return [Result(session, one, claim, plain) for one in ids]


def test_results_are_split_into_large_and_small_whole_claims_and_the_rest():
    state = holding(c1=range(50), c2=range(100, 149), c3=range(200, 203), c4=range(300, 360), c5=range(400, 402))
    mixed = [*results(5, [400]), *results(5, [401], plain=False)]
    planned = plan_transaction(
        state,
        [
            *results(1, range(50)),
            *results(2, range(100, 149)),
            *results(3, [200, 201]),
            *results(4, range(300, 360), session=8),
            *mixed,
        ],
    )
    assert planned.large == (tuple(results(1, range(50))),)
    assert planned.small == (tuple(results(2, range(100, 149))),)
    assert planned.rest == (tuple(results(3, [200, 201])), tuple(results(4, range(300, 360), session=8)), tuple(mixed))


def test_results_of_a_whole_claim_may_arrive_in_parts_and_are_ordered_like_its_row():
    planned = plan_transaction(holding(c1=range(3)), [*results(1, [2]), *results(1, [1, 0])])
    assert planned.small == (tuple(results(1, [0, 1, 2])),) and not planned.large and not planned.rest


def test_duplicate_result_never_enters_a_whole_claim_statement():
    planned = plan_transaction(holding(c1=range(2)), [*results(1, [0, 1]), *results(1, [1])])
    assert planned.small == (tuple(results(1, [0, 1])),) and planned.rest == (tuple(results(1, [1])),)
    planned = plan_transaction(holding(c1=range(3)), [*results(1, [0, 1]), *results(1, [1])])
    assert not planned.small and planned.rest == (tuple(results(1, [0, 1, 1])),)


@pytest.mark.parametrize(
    "sizes, count",
    [([], 0), ([1], 1), ([5000], 1), ([5000, 1], 1), ([MOST_RESULTS, 1], 1), ([1000, 1000, 1], 2), ([1, 2, 3], 3)],
)
def test_transaction_has_at_most_2000_results_unless_its_first_batch_is_larger(sizes, count):
    assert batches_that_fit(sizes) == count
