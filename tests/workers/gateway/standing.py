"""Builds a gateway's bookkeeping in a given state for the tests."""

from __future__ import annotations

from typing import Any

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, sessions
from jobherd.workers.gateway.state import Limits, State

NOW = 1000.0
LIMITS = Limits(streams=3, slots=8, poll=30.0)
ANY = a.Filter()


def jobs(*ids: int, timeout: float = 0.0) -> tuple[a.Job, ...]:
    return tuple(a.Job(one, "x", 1, 5, timeout) for one in ids)


def opened(session: int = 7, attached: int = 1, held: dict[int, tuple[a.Job, ...]] | None = None) -> a.Opened:
    return a.Opened(session, session + 100, attached, held or {})


def connected() -> State:
    state = State(LIMITS)
    assert sessions.on_connect(state, 1, NOW) == []
    return state


def opening() -> State:
    state = connected()
    assert sessions.on_hello(state, 1, sessions.Hello("p"), NOW) == [a.OpenSession(1, "p")]
    return state


def open_stream() -> State:
    """Return a state with stream 1 of session 7, child 107, attached 1."""
    state = opening()
    assert sessions.on_opened(state, 1, opened(), NOW, NOW) == [a.Welcome(1, 7, (), 30.0)]
    return state


def waiting(count: int = 2, number: int = 1) -> State:
    """Return a state with a waiting Ready."""
    state = open_stream()
    assert assignment.on_ready(state, 1, number, ANY, count, lease=0.0, now=NOW) == []
    return state


def claiming() -> tuple[State, a.Claim]:
    """Return a state with a claim that is not answered yet."""
    state = waiting()
    claim = assignment.next_claim(state, 0, NOW)
    assert claim == a.Claim(ANY, (a.Share(1, 1, 7, 107, 1, 2),), 0)
    return state, claim


def unsent() -> State:
    """Return a state with jobs 11 and 12 of claim 41, not handed to gRPC."""
    state, claim = claiming()
    found = assignment.on_claimed(state, claim, [a.Found(41, jobs(11, 12))], NOW)
    assert found == [a.SendTasks(1, 1, 41)]
    return state


def out() -> State:
    """Return a state with jobs 11 and 12 at the worker."""
    state = unsent()
    assert assignment.on_handed(state, 1, 1, NOW) == []
    assignment.on_written(state, 1, 1)
    return state


def lingering() -> State:
    """Return the state of `out` after its stream broke."""
    state = out()
    assert sessions.on_break(state, 1, NOW) == []
    return state


def refs(claim: int, *ids: int) -> tuple[a.TaskRef, ...]:
    return tuple(a.TaskRef(one, claim) for one in ids)


def ends(stream: int, status: a.Status, found: list[Any]) -> bool:
    """Return whether the first action ends that stream with this status."""
    return bool(found) and isinstance(found[0], a.EndStream) and (found[0].stream, found[0].status) == (stream, status)
