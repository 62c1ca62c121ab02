"""Tests a request that the gateway sends together with a claim. Each succeeds or fails independently."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from jobherd.workers.database.wire import Wire
from jobherd.workers.gateway.database import GatewaySession, NoAnswerError
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.process.spec import ChildSettings, ChildSpec
from jobherd.workers.process.wakeup import Wake
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAIM = ("session/show_backend", {})
"""Stands for a claim. The session sends it in the same way."""


@pytest.fixture
def session(database: str) -> Iterator[GatewaySession]:
    with Queue(database) as queue:
        read, write = os.pipe2(os.O_NONBLOCK)
        spec = ChildSpec(
            kind="gateway",
            slot=0,
            incarnation=1,
            supervisor=queue.supervisor().id,
            parent=os.getppid(),
            wake=read,
            report=write,
            board=StatusBoard("test"),
            control=ControlBlock(),
            settings=ChildSettings(dsn=database),
        )
        made = GatewaySession(spec, Wake(read, parent=os.getppid()))
        made.connect()
        yield made
        made.close()
        os.close(read)
        os.close(write)


@pytest.fixture
def sent(session: GatewaySession, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the statements of each exchange."""
    exchanges: list[list[str]] = []
    original = Wire._send

    def send(wire: Wire, requests: Any, **how: Any) -> Any:
        results = original(wire, requests, **how)
        exchanges.append([name for name, _ in requests])
        return results

    monkeypatch.setattr(Wire, "_send", send)
    return exchanges


def find(session: GatewaySession) -> tuple[str, dict[str, object]]:
    return "recover/find_child", {"child": session.child}


def test_claim_and_following_request_are_sent_together_and_each_only_once(
    session: GatewaySession, sent: list[list[str]]
):
    session.next = following = find(session)
    assert session.transact_once(CLAIM) == [(session.backend,)]
    [rows] = session.transact(following)
    assert len(rows) == 1
    assert sent == [["session/show_backend", "recover/find_child"]]
    assert session.transact(following) == [rows], "a repetition is sent as any other request"
    assert session.transact_once(CLAIM) == [(session.backend,)]
    assert sent[1:] == [["recover/find_child"], ["session/show_backend"]]


def test_early_answer_is_used_only_for_its_own_request(session: GatewaySession, sent: list[list[str]]):
    session.next = find(session)
    session.transact_once(CLAIM)
    assert session.transact(CLAIM) == [[(session.backend,)]]
    assert sent[1:] == [["session/show_backend"]]


def test_rejected_following_request_does_not_affect_the_claim(session: GatewaySession):
    session.next = following = ("session/set_lock_timeout", {"milliseconds": "none"})
    assert session.transact_once(CLAIM) == [(session.backend,)]
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        session.transact(following)


def test_rejected_claim_does_not_affect_the_following_request(session: GatewaySession, sent: list[list[str]]):
    session.next = following = find(session)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        session.transact_once(("session/set_lock_timeout", {"milliseconds": "none"}))
    assert len(session.transact(following)[0]) == 1
    assert len(sent) == 1


def test_following_request_that_cannot_be_encoded_does_not_affect_the_claim(session: GatewaySession):
    session.next = following = ("recover/find_child", {"child": "\0"})
    assert session.transact_once(CLAIM) == [(session.backend,)]
    with pytest.raises(ValueError, match="NUL"):
        session.transact(following)


def test_after_a_lost_session_the_claim_has_no_answer_and_the_following_request_is_resent(
    session: GatewaySession, sent: list[list[str]], database: str
):
    before = session.backend
    with psycopg.connect(database, autocommit=True) as owner:
        assert owner.execute("SELECT pg_terminate_backend(%s, 10000)", [before]).fetchone() == (True,)
    session.next = following = find(session)
    with pytest.raises(NoAnswerError):
        session.transact_once(CLAIM)
    assert len(session.transact(following)[0]) == 1
    assert session.backend != before
    assert sent[-1] == ["recover/find_child"]


@pytest.mark.parametrize(
    "problem", [psycopg.errors.DeadlockDetected(), psycopg.OperationalError("the session has ended")]
)
def test_following_request_that_was_not_executed_is_sent_again(
    session: GatewaySession, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch, problem: psycopg.Error
):
    session.next = following = find(session)
    session.transact_once(CLAIM)
    monkeypatch.setattr(session, "second_response", lambda: problem)
    assert len(session.transact(following)[0]) == 1
    assert sent == [["session/show_backend", "recover/find_child"], ["recover/find_child"]]
