"""Results and heartbeats that arrive as separate calls, at the gateway of the session or at another one.

A session that this gateway serves is known from the bookkeeping. Any other one is looked up in the
database, under the principal of the call. gRPC is used in `dispatch_service.py`, not here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from jobherd.workers.gateway import judge, sessions, tasks
from jobherd.workers.gateway.actions import Settle, TaskRef
from jobherd.workers.gateway.peer import Worker
from jobherd.workers.gateway.replies import Reply
from jobherd.workers.gateway.requests import Reported
from jobherd.workers.gateway.state import Session, State, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.coordinator import Coordinator
    from jobherd.workers.gateway.transactions import Holder


class GoneError(Exception):
    """The session has ended, or it is another principal's."""


class Unary:
    """What the calls of DispatchService do. Functions raise GoneError, or psycopg.Error without a database."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def _known(self, session: int, principal: Principal) -> Session | None:
        """Return the session if this gateway serves it for that principal."""
        found = self._coordinator.state.sessions.get(session)
        return found if found is not None and found.principal == principal.name else None

    async def held(self, session: int, principal: Principal) -> tuple[TaskRef, ...]:
        """Return what a session holds."""
        known = self._known(session, principal)
        if known is not None:
            return tuple(ref for ref, _ in known.refs())
        found = await self._find(session, principal)
        return tuple(TaskRef(job.id, token) for token, jobs in found.jobs.items() for job in jobs)

    def rest_of(self, session: int, principal: Principal, now: float) -> float:
        """Return the seconds until the last lease of a session's tasks expires, as far as it is known here."""
        known = self._known(session, principal)
        ends = [task.deadline for _, task in known.refs()] if known is not None else []
        return max(ends, default=now) - now

    async def report(self, session: int, principal: Principal, results: Sequence[m.Result]) -> list[m.Refusal]:
        """Record results, and return the refusals once they are committed."""
        known = self._known(session, principal)
        elsewhere = None
        if known is None or any(known.task(_ref(result)) is None for result in results):
            elsewhere = await self._find(session, principal)
            known = self._known(session, principal)  # it may have been attached or lost meanwhile
        now = time.monotonic()
        worker = self._coordinator.worker_of(session) or Worker(
            principal, elsewhere.worker if elsewhere is not None else principal.name
        )
        judged: judge.Judged = {}
        refusals: list[m.Refusal] = []
        child = 0
        there = list(results)
        if known is not None:
            here = [result for result in results if known.task(_ref(result)) is not None]
            there = [result for result in results if known.task(_ref(result)) is None]
            judged, refusals = judge.judge(known, worker, here, now)
            self._coordinator.counts.count(known, judged)
            child = known.child
        if elsewhere is not None:
            away = _session_of(session, elsewhere, now)
            more, refused = judge.judge(away, worker, there, now)
            self._coordinator.counts.count(away, more)
            judged |= more
            refusals += refused
            child = elsewhere.child
        self._coordinator.metrics.invalid(len(refusals))
        if judged:
            committed = asyncio.get_running_loop().create_future()
            settle = Settle(0, 0, session, child, tuple(judged))
            ran_on = self._coordinator.ran_on(worker.name)
            self._coordinator.report(Reported(settle, ran_on, judged, Reply(refusals, committed)))
            await committed
        self._note_life(session)
        return refusals

    async def beat(
        self, session: int, principal: Principal, refs: Sequence[TaskRef], extend: float
    ) -> tuple[list[TaskRef], float]:
        """Extend tasks. Return those that the session has lost, and the rest of its lease in seconds."""
        now = time.monotonic()
        known = self._known(session, principal)
        if known is not None and known.stream:
            lost = list(tasks.extend_tasks(known, refs, extend, now))
            self._note_life(session)
            return lost, known.lease_until - now
        # Without a stream, another gateway may serve the session by now.
        held = await self._coordinator.look_up(lambda database: database.extend(session, principal.name, refs, extend))
        if held is None:
            raise GoneError
        known = self._known(session, principal)
        if known is not None:
            tasks.extend_tasks(known, refs, extend, now)
        self._note_life(session)
        lease = self._coordinator.state.limits.session_lease
        return [ref for ref in refs if ref not in held], lease - (time.monotonic() - now)

    async def forget_ended(self, streams: Iterable[int]) -> None:
        """Forget tasks of streams without room whose results another gateway has recorded."""
        state = self._coordinator.state
        full = [state.streams[number] for number in streams if number in state.streams]
        looked = {
            session.id: (session.child, [ref for ref, task in session.refs() if task.state is TaskState.OUT])
            for stream in full
            if (session := state.sessions.get(stream.session)) is not None
            and (session.out >= stream.slots or (state.draining and session.claims))
        }
        if not looked:
            return
        children = [child for child, _ in looked.values()]
        held = await self._coordinator.look_up(lambda database: database.find_held(children))
        for number, (child, refs) in looked.items():
            if ended := [ref for ref in refs if (child, ref) not in held]:
                tasks.on_ended_elsewhere(state, number, ended)
                self._coordinator.top_up(number)

    async def _find(self, session: int, principal: Principal) -> Holder:
        found = await self._coordinator.look_up(lambda database: database.find(session, principal.name))
        if found is None:
            raise GoneError
        return found

    def _note_life(self, session: int) -> None:
        sessions.on_sign_of_life(self._coordinator.state, session, time.monotonic())
        self._coordinator.top_up(session)


def _session_of(number: int, holder: Holder, now: float) -> Session:
    """Return a session as the database has it, for the judgment of its results only."""
    session = Session(number, holder.child, 0, "", 0.0, 0.0)
    for token, jobs in holder.jobs.items():
        State().enter(session, token, jobs, 0.0, now)
    return session


def _ref(result: m.Result) -> TaskRef:
    return TaskRef(result.task_id, result.claim)
