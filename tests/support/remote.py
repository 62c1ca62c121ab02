"""Acts as a gateway on a database: runs the statements of `sql/queries/remote/` without a gateway process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from tests.support.queue import jobs_of

if TYPE_CHECKING:
    from tests.support.queue import Queue

LEASE = 600.0


@dataclass
class RemoteSession:
    """A remote worker's session, with the ids under which one gateway serves it."""

    id: int
    child: int
    attached: int


@dataclass(frozen=True)
class Dealt:
    """The jobs that one Ready got: its position among the Readys from 1, the token of its claim, and the jobs."""

    ready: int
    token: int
    jobs: list[int]


class Gateway:
    """A supervisor's gateway with its own database session."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.supervisor = queue, queue.supervisor().id
        self.connection = psycopg.connect(queue.dsn, autocommit=True)
        queue.opened.append(self.connection)
        self.connection.execute(queue.text("session/force_index_plans"), {"local": False})

    def rows(self, name: str, **given: object) -> list[dict[str, Any]]:
        cursor = self.connection.cursor(row_factory=dict_row)
        return cursor.execute(self.queue.text(name), {"supervisor": self.supervisor, **given}).fetchall()

    def open(self, *, worker: str = "w", principal: str = "team-a", lease: float = LEASE) -> RemoteSession | None:
        rows = self.rows("remote/open_session", worker=worker, version="py/1", principal=principal, lease=lease)
        return RemoteSession(rows[0]["session"], rows[0]["child"], rows[0]["attached"]) if rows else None

    def attach(
        self, session: RemoteSession, *, principal: str = "team-a", lease: float = LEASE
    ) -> RemoteSession | None:
        """Resume a session at this gateway; return it with this gateway's ids, or None."""
        rows = self.rows("remote/attach_session", session=session.id, principal=principal, lease=lease)
        return RemoteSession(rows[0]["session"], rows[0]["child"], rows[0]["attached"]) if rows else None

    def renew(self, *sessions: RemoteSession, lease: float = LEASE) -> list[int]:
        return sorted(row["session"] for row in self.served(*sessions, lease=lease) if row["renewed"])

    def served(self, *sessions: RemoteSession, lease: float = LEASE) -> list[dict[str, Any]]:
        """Return the sessions that this gateway serves, and whether their leases were renewed."""
        pairs = {"sessions": [one.id for one in sessions], "attached": [one.attached for one in sessions]}
        return self.rows("remote/renew_sessions", lease=lease, **pairs)

    def hold(self, session: RemoteSession) -> None:
        self.rows("remote/hold_session", session=session.id, attached=session.attached)

    def held(self, *sessions: RemoteSession) -> dict[int, list[int]]:
        """Return the jobs of each claim by token."""
        found: dict[int, list[int]] = {}
        for row in self.rows("remote/find_held", children=[one.child for one in sessions]):
            found.setdefault(row["token"], []).append(row["job"])
        return found

    def claim_one(self, session: RemoteSession, wanted: int = 1) -> Dealt:
        """Claim with the statement of workers, under the session's ids."""
        nothing = dict.fromkeys(("served", "turns", "avoided", "kinds", "shares", "short"))
        claim = nothing | {"supervisor": session.id, "child": session.child, "wanted": wanted}
        rows = jobs_of(self.connection.execute(self.queue.text("claim/claim_jobs"), claim))
        assert rows, "nothing was claimed"
        return Dealt(1, rows[0]["token"], [row["id"] for row in rows])

    @staticmethod
    def slots(*readys: tuple[RemoteSession, int], **more: object) -> dict[str, object]:
        """Return the parameters of claim_slots.sql for Readys: pairs of a session and the jobs that it wants."""
        nothing = dict.fromkeys(("served", "turns", "avoided", "short"))
        return nothing | {
            "sessions": [session.id for session, _ in readys],
            "children": [session.child for session, _ in readys],
            "attached": [session.attached for session, _ in readys],
            "sizes": [size for _, size in readys],
        } | more  # fmt: skip

    def claim_raw(
        self, *readys: tuple[RemoteSession, int], by: str = "remote/claim_slots", **more: object
    ) -> list[dict[str, Any]]:
        return self.rows(by, **self.slots(*readys, **more))

    def claim(self, *readys: tuple[RemoteSession, int], **more: Any) -> list[Dealt]:
        """Claim for Readys; return the jobs of each that got some."""
        dealt: dict[tuple[int, int], list[int]] = {}
        for row in self.claim_raw(*readys, **more):
            if row["id"] is not None:
                dealt.setdefault((row["ready"], row["token"]), []).append(row["id"])
        return [Dealt(ready, token, jobs) for (ready, token), jobs in dealt.items()]

    def settle_claims(
        self, *claims: tuple[RemoteSession, int, list[int]], keep: int = 3, **more: object
    ) -> list[tuple[int, int]]:
        """Record the outcomes of whole claims: triples of session, token and jobs.

        Returns child and token of each claim that was recorded.
        """
        count = sum(len(jobs) for _, _, jobs in claims)
        given: dict[str, object] = {"results": None, "usages": None, "progresses": None} | {
            "children": [session.child for session, _, _ in claims],
            "tokens": [token for _, token, _ in claims],
            "sizes": [len(jobs) for _, _, jobs in claims],
            "ran_on": [f"{session.id} via test" for session, _, _ in claims],
            "ids": [job for _, _, jobs in claims for job in jobs],
            "ran": [0.25] * count, "ago": [0.5] * count, "keeps": [keep] * count,
        } | more  # fmt: skip
        return [(row["child"], row["token"]) for row in self.rows("remote/settle_claims", **given)]

    def settle(
        self, session: RemoteSession, token: int, jobs: list[int], outcome: str = "ok", **more: Any
    ) -> list[int]:
        nothing = dict.fromkeys(
            (
                "delays",
                "results",
                "codes",
                "errors",
                "tracebacks",
                "usages",
                "progresses",
                "post_mortems",
                "crashes",
                "keeps",
                "logs",
            )
        )
        given = nothing | {key: [value] * len(jobs) for key, value in more.items()}
        given |= {"outcomes": [outcome] * len(jobs), "ids": jobs, "ran": [0.1] * len(jobs), "ago": [0.0] * len(jobs)}
        rows = self.rows("settle/settle_jobs", child=session.child, token=token, ran_on="w via test", **given)
        return sorted(row["id"] for row in rows)
