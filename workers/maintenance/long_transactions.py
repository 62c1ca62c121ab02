"""Warns of jobs whose transaction has been open for long. It ends none of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobherd.workers.inspect.phrases import duration

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.spec import ChildSpec

_log = logging.getLogger("jobherd.maintenance")


def warn_of_transactions(session: Session, spec: ChildSpec) -> None:
    """Log each job of this supervisor whose transaction is older than the setting `long_transaction`."""
    wanted = {"supervisor": spec.supervisor, "seconds": spec.settings.long_transaction}
    for job, kind, seconds in session.run("maintenance/find_long_transactions", wanted):
        _log.warning(
            "the transaction of %s #%d has been open for %s: nothing that is updated or deleted "
            "meanwhile can be vacuumed, in the whole "
            "database; do the slow part before it, and in `with job.transaction():` only what belongs together",
            kind, job, duration(seconds), extra={"job": job},
        )  # fmt: skip
