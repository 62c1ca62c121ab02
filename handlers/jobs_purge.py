"""jobs:purge_completed: delete completed jobs before their retention ends.

Without this job, the history is dropped partition by partition (after 7 days for completed jobs, 30
for others). Use it to delete earlier, by hand or from cron. It deletes in batches, each in its own
transaction, and skips rows that other transactions lock. So it can be interrupted anywhere, run
twice, or run at the same time as another purge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd import Job, Poison, default_client, handler
from jobherd.handlers._enqueue.statements import Statement
from jobherd.handlers._policy.durations import at_least_zero

if TYPE_CHECKING:
    from datetime import datetime

    from jobherd.handlers._enqueue.statements import Row


@handler("jobs:purge_completed", timeout="1h")
def purge_completed(job: Job, older_than: str = "7d", kind: str | None = None, batch: int = 1000) -> dict[str, int]:
    """Delete completed jobs, with their attempts, and return how many.

    Args:
        job: the job.
        older_than: minimum time since completion, a duration, default "7d". "0s" means all that
            exist now.
        kind: only jobs of this kind. Default None: all kinds.
        batch: jobs examined in one transaction, 1 to 100,000, default 1,000.

    Raises:
        Poison: the duration or the batch is invalid.

    Example:
        >>> purge_completed.enqueue(older_than="12h")  # doctest: +SKIP
        42
    """
    try:
        older = at_least_zero(older_than, field="older_than")
    except ValueError as problem:
        raise Poison(str(problem)) from None
    if not 1 <= batch <= 100_000:
        raise Poison(f"batch must be 1 to 100,000, not {batch}")
    wanted: dict[str, Any] = {"states": ["completed"], "kind": kind}
    client = default_client()
    cutoff, total = client.run(Statement("control/count_purgeable", wanted | {"older": older}, _read_count))
    deleted, after = 0, 0
    while True:
        # The cutoff is fixed and the ids advance. Jobs that complete meanwhile are left out, and no
        # row is examined twice.
        most = {"cutoff": cutoff, "after": after, "most": batch}
        gone, reached = client.run(Statement("control/purge_history", wanted | most, _read_batch))
        deleted += gone
        if gone:
            job.progress(deleted / total if total else 1.0, f"{deleted} of {total} jobs")
        if reached is None:
            return {"deleted": deleted}
        after = reached


def _read_count(rows: list[Row], names: tuple[str, ...]) -> tuple[datetime, int]:
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return found[0]["cutoff"], sum(row["jobs"] for row in found)


def _read_batch(rows: list[Row], names: tuple[str, ...]) -> tuple[int, int | None]:
    found = dict(zip(names, rows[0], strict=True))
    return found["jobs"], found["reached"]
