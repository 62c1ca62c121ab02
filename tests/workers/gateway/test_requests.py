"""Tests the answers to attach and renewal requests whose session may be missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import sessions
from jobherd.workers.gateway.requests import Open, Renew
from jobherd.workers.gateway.responses import AWAY, GONE
from jobherd.workers.gateway.transactions import Transactions
from tests.workers.gateway.standing import NOW, connected, open_stream


class Database:
    """No session can be attached. One may exist."""

    def __init__(self, *, exists: bool) -> None:
        self._exists = exists

    def attach(self, _action: a.AttachSession) -> None:
        return None

    def find(self, _session: int, _principal: str) -> object | None:
        return SimpleNamespace() if self._exists else None


@pytest.mark.parametrize(
    ("exists", "status", "why"), [(False, a.Status.NOT_FOUND, GONE), (True, a.Status.UNAVAILABLE, AWAY)]
)
def test_failed_attach_is_not_found_only_if_the_session_does_not_exist(exists: bool, status: a.Status, why: str):
    state = connected()
    [attach] = sessions.on_hello(state, 1, sessions.Hello("p", 7), NOW)
    asked = Open(attach, SimpleNamespace())
    answer = asked.send(Database(exists=exists))
    assert asked.apply(state, answer, {}, NOW) == [a.EndStream(1, status, why)]


@pytest.mark.parametrize(("answer", "known"), [({7}, [7]), (None, [7]), (RuntimeError(), [7]), (set(), [])])
def test_session_is_removed_only_if_a_successful_renewal_does_not_include_it(answer: object, known: list[int]):
    """The answer None means that the gateway's supervisor has no lease, as after an outage of the database."""
    state = open_stream()
    Renew(a.RenewSessions(((7, 1),))).apply(state, answer, {}, NOW)
    assert list(state.sessions) == known


@pytest.mark.parametrize(("rows", "answer"), [([(7, True)], {7}), ([(7, False)], None), ([], set())])
def test_sessions_that_exist_but_were_not_renewed_are_not_reported_as_missing(
    rows: list[tuple[int, bool]], answer: object
):
    session = SimpleNamespace(transact=lambda *_: [rows])
    assert Transactions(session, 1, 3.0).renew(a.RenewSessions(((7, 1),))) == answer
