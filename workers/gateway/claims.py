"""Makes a claim for waiting Readys, and turns the claimed rows into the tasks of the protocol.

It decides nothing: `assignment.py` has chosen the Readys. It runs in the database thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd import sql
from jobherd.handlers._remote import messages as m
from jobherd.handlers._run.job import EXTRAS
from jobherd.workers.gateway.actions import STALE, Found, Job
from jobherd.workers.job.row import JobRow, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.database.opening import Row
    from jobherd.workers.gateway.actions import Claim, Filter, Share
    from jobherd.workers.gateway.database import GatewaySession

MICROS: Final = 1_000_000
_WAITED: Final = JobRow._fields.index("waited")
MOST_AVOIDED: Final = 20
"""Queues whose ready rows are all locked that one claim passes over."""
LOCKED: Final = 0.25
"""Seconds after which such a queue is claimed from again: the end of a lock notifies no gateway."""

SHORT: Final[list[str]] = []
"""Kinds whose claims need not wait for their fsync: none. A gateway does not know how long jobs take."""


@dataclass(slots=True)
class Claimed:
    """The answer to a claim.

    Attributes:
        found: one for each share of the claim.
        tasks: the messages with the tasks, by fencing token.
        opens_in: seconds until a rate limit lets the next job start. None: no job waits for one.
    """

    found: list[Found]
    tasks: dict[int, m.WorkResponse] = field(default_factory=dict)
    opens_in: float | None = None


class SlotClaims:
    """Makes the claims of a gateway. supervisor: the number of the gateway's supervisor."""

    def __init__(self, session: GatewaySession, supervisor: int) -> None:
        self._session = session
        self._supervisor = supervisor
        self._gated = False
        """There is a pause or limit, so claim_gated.sql must run."""
        self._opens_in: float | None = None
        """Seconds until a rate limit lets the next job start, by the last claim."""

    def make(self, claim: Claim) -> Claimed:
        """Return the answer to a claim. Raises NoAnswerError, psycopg.Error or StopWaiting."""
        self._opens_in = None
        rows, stale = self._claim(claim)
        by_ready: dict[int, list[JobRow]] = {}
        for row in rows:
            by_ready.setdefault(row[-1], []).append(JobRow._make(row[:-1]))
        answer = Claimed([], opens_in=self._opens_in)
        for place in range(1, len(claim.shares) + 1):
            mine = by_ready.get(place)
            if mine is None:
                answer.found.append(Found(STALE if place in stale else 0))
                continue
            answer.found.append(Found(mine[0].token, tuple(map(_job, mine))))
            answer.tasks[mine[0].token] = message = m.WorkResponse()
            for row in mine:
                _add_task(message.tasks, row)
        return answer

    def _claim(self, claim: Claim) -> tuple[list[Row], set[int]]:
        """Return the claimed rows, and the places of the Readys whose session is not this gateway's."""
        stale: set[int] = set()
        avoided: list[str] = []
        # A prefix among the queues is more than claim_slots.sql can search for.
        ranked = any(queue.endswith("*") for queue in claim.filter.queues)
        while True:
            if self._gated or ranked:
                rows = self._claim_gated(claim, avoided)
            else:
                found = self._session.transact_once(self._slots(claim, avoided))
                stale = {row[-1] for row in found if row[0] == STALE}
                rows = [row for row in found if row[0] != STALE]
            if avoided and not rows:
                self._opens_in = LOCKED if self._opens_in is None else min(self._opens_in, LOCKED)
            if not rows or rows[0][1] is not None:
                return rows, stale
            queue = rows[0][3]
            if queue is not None and len(avoided) < MOST_AVOIDED:
                avoided.append(queue)
            elif queue is not None or ranked:
                return [], stale
            else:
                self._gated = not self._gated

    def _slots(self, claim: Claim, avoided: Sequence[str]) -> tuple[str, dict[str, Any]]:
        statement, conditions = _narrowed("remote/claim_slots", claim.filter)
        return statement, conditions | {
            "supervisor": self._supervisor,
            "sessions": [share.session for share in claim.shares],
            "children": [share.child for share in claim.shares],
            "attached": [share.attached for share in claim.shares],
            "sizes": [share.size for share in claim.shares],
            "served": list(claim.filter.queues) or None,
            "turns": None,
            "avoided": list(avoided) or None,
            "short": SHORT,
        }

    def _claim_gated(self, claim: Claim, avoided: Sequence[str]) -> list[Row]:
        """Make a claim for each Ready: a limit is counted again for each of them."""
        statement, conditions = _narrowed("claim/claim_gated", claim.filter)
        rows: list[Row] = []
        for place, share in enumerate(claim.shares, 1):
            parameters = self._gate_parameters(claim.filter, share, avoided) | conditions
            found = self._session.transact_once((statement, parameters))
            if found and found[-1][:4] == (None, None, None, None) and found[-1][_WAITED] is not None:
                self._opens_in = found[-1][_WAITED]
                found = found[:-1]
            if not found:
                break
            if found[0][1] is None:
                return rows or [(*found[0], place)]
            rows += [(*row, place) for row in found]
        return rows

    def _gate_parameters(self, accepts: Filter, share: Share, avoided: Sequence[str]) -> dict[str, Any]:
        return {
            # The session's own lease counts.
            "supervisor": share.session,
            "child": share.child,
            "served": list(accepts.queues) or None,
            "avoided": list(avoided) or None,
            "wanted": share.size,
            "kinds": None,
            "shares": None,
            "short": SHORT,
            "limited": None,
            "limits": None,
            "left_queue": None,
            "left_kind": None,
            "narrowed": False,
            "turns": None,
            "tiers": None,
        }


def _narrowed(statement: str, accepts: Filter) -> tuple[str, dict[str, Any]]:
    """Return the name of the statement that takes only what a filter accepts, and its parameters."""
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    if accepts.kinds:
        conditions.append("like_kinds")
        parameters["kind_patterns"] = [_pattern(kind) for kind in accepts.kinds]
    if accepts.tenants:
        conditions.append("of_tenants")
        parameters["only_tenants"] = list(accepts.tenants)
    if not conditions:
        return statement, {}
    return sql.narrow(statement, *conditions), parameters | {"narrowed": True}


def _pattern(kind: str) -> str:
    r"""Return a kind, or a prefix that ends in `*`, as a pattern of LIKE.

    >>> _pattern("my_mail"), _pattern("mail:*")
    ('my\\_mail', 'mail:%')
    """
    text = kind.removesuffix("*").translate({ord("\\"): "\\\\", ord("%"): "\\%", ord("_"): "\\_"})
    return f"{text}%" if kind.endswith("*") else text


def _job(row: JobRow) -> Job:
    webhook = row.extras is not None and orjson.loads(row.extras)["webhook"] is not None
    return Job(row.id, row.kind, row.attempts, row.max_attempts, row.timeout or 0.0, row.crashes, webhook)


def _add_task(batch: m.TaskBatch, row: JobRow) -> None:
    """Add a job to a message, as the client gets it. Its lease is filled in when it is sent."""
    task = batch.tasks.add(
        id=row.id,
        claim=row.token,
        kind=row.kind,
        queue=row.queue,
        payload=row.payload.encode(),
        attempt=row.attempts,
        waited_seconds=row.waited,
        created_at_micros=int(row.created_at * MICROS),
        run_at_micros=int(row.run_at * MICROS),
    )
    # Cost: a field takes as long when it is set to its default, and few jobs have these.
    if row.max_attempts:
        task.max_attempts = row.max_attempts
    if row.crashes:
        task.crashes = row.crashes
    if row.priority:
        task.priority = row.priority
    if row.timeout:
        task.timeout_seconds = row.timeout
    if row.good_for is not None:
        # A job that expires at this moment must not look like one that never expires.
        task.expires_in_seconds = row.good_for or -1.0
    if row.extras is not None:
        extras = orjson.loads(row.extras)
        task.data = read_bytes(extras["payload_bytes"]) or b""
        for name in EXTRAS:
            if extras[name] is not None:
                setattr(task, name, extras[name])
