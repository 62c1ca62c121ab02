"""jobs:purge_completed: delete completed jobs before their time.

Without it the past goes by itself, partition by partition (7 days for completed jobs, 30 for the rest). This is for those who want it
gone sooner: by hand, or from cron. It deletes in batches, each its own transaction, and leaves alone what somebody else holds; so it may
be cut off anywhere, run twice, or run beside another of its kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd import Job, Poison, default_client, handler
from jobherd.handlers._enqueue.options import Statement
from jobherd.handlers._policy.durations import at_least_zero

if TYPE_CHECKING:
    from datetime import datetime

    from jobherd.handlers._enqueue.options import Row


@handler("jobs:purge_completed", timeout="1h")
def purge_completed(job: Job, older_than: str = "7d", kind: str | None = None, batch: int = 1000) -> dict[str, int]:
    """Delete completed jobs, with their attempts, and return how many.

    older_than: how long ago they must have completed, a span of time, default "7d"; "0s" means all that are there now.
    kind: only jobs of this kind, default None: of every kind. batch: how many jobs are looked at in one transaction, 1 to 100,000, default 1,000.
    Raises Poison for a span or a batch that cannot be.

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
    cutoff, total = client.run(Statement("count_purgeable", wanted | {"older": older}, _read_count))
    deleted, after = 0, 0
    while True:
        # The cutoff stands still and the ids move on: what completes meanwhile is not ours, and no batch looks at a row twice.
        most = {"cutoff": cutoff, "after": after, "most": batch}
        gone, reached = client.run(Statement("purge_history", wanted | most, _read_batch))
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
