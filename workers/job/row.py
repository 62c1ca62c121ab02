"""A claimed job, read from the answer to the claim, and how to read its rare attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence


class JobRow(NamedTuple):
    """A claimed job: a row of claim_gated.sql."""

    token: int
    id: int  # None: not a job. Other sessions have locked the first rows, see claim_jobs.sql
    kind: str
    queue: str
    payload: str
    attempts: int
    max_attempts: int | None
    crashes: int
    priority: int
    timeout: float | None
    created_at: float
    run_at: float
    good_for: float | None
    waited: float
    more: bool
    extras: str | None = None
    """Attributes that few jobs have: the column `extras` as a JSON object, by the names of its type."""

    def traceparent(self) -> str | None:
        """Return the trace that the job belongs to, or None."""
        found: str | None = None if self.extras is None else orjson.loads(self.extras)["traceparent"]
        return found


def write_bytes(data: bytes | None) -> str | None:
    """Return bytes as they are in the JSON object of a job's extras: as PostgreSQL writes them."""
    return None if data is None else r"\x" + data.hex()


def read_bytes(text: str | None) -> bytes | None:
    r"""Return the bytes that PostgreSQL wrote as text.

    >>> read_bytes(r"\x00ff")
    b'\x00\xff'
    """
    return None if text is None else bytes.fromhex(text[2:])


MEMBER: Final = (
    '{"tenant":null,"webhook":null,"payload_bytes":null,"parent_id":null,"traceparent":null,"unique_key":null,'
    '"schedule":null,"partition":null,"flow":'
)
"""How the extras of a job begin that is the member of a flow, or waited for, and has no other. Only handlers that take
the job can tell it from one without extras. Cost: all other extras take the longer way."""

_EXTRAS: Final = '{"tenant"'
"""How the extras of a job begin that has no other rare attribute. With others they are text in an object of all."""
_WHOLE: Final = len(JobRow._fields)


def claimed_jobs(rows: Sequence[tuple[Any, ...]]) -> list[JobRow]:
    """Return the jobs of the answer to a claim.

    Cost: claim_jobs.sql returns what is the same for all jobs only once, in its first row. All other
    claiming statements return whole `JobRow`s.

    >>> about, job = (5, "default", None, 0, None, 9.5, None, None), (7, "a:b", "{}", 1, 0, 9.0, 9.25)
    >>> claimed_jobs([about, (*job, None)])[0].waited
    0.25
    >>> claimed_jobs([about, (*job, '{"tenant":"a"}')])[0].extras
    '{"tenant":"a"}'
    >>> claimed_jobs([about, (*job, '{"crashes" : 1, "extras" : null}')])[0].crashes
    1
    """
    if not rows or len(rows[0]) == _WHOLE:
        return [JobRow._make(row) for row in rows]
    token, queue, _, left, _, now, _, _ = rows[0]
    more = left > 0
    if token is None:
        return [JobRow._make((None, None, "", queue, "", 0, None, 0, 0, None, now, now, None, None, more, None))]
    found: list[JobRow] = []
    new = tuple.__new__  # Cost: a call of JobRow with its fields takes three times as long, and `max` as long as this.
    for number, kind, payload, attempts, priority, created_at, run_at, rare in rows[1:]:
        waited = now - (run_at if run_at > created_at else created_at)  # noqa: FURB136
        extras = None if rare is None or not rare.startswith(_EXTRAS) else rare
        job = new(
            JobRow,
            (token, number, kind, queue, payload, attempts, None, 0, priority, None, created_at, run_at, None, waited,
             more, extras),
        )  # fmt: skip
        found.append(job if rare is extras else job._replace(**orjson.loads(rare)))
    return found
