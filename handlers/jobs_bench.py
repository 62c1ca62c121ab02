"""Handlers of `jobherd bench`: one does nothing, one returns its start time.

Their jobs are enqueued in a separate schema. They must not do more: the cost of these jobs counts
as the cost of Jobherd. They are harmless elsewhere.
"""

from __future__ import annotations

import time

from jobherd import handler


@handler("bench:noop", queue="bench")
def noop(n: int = 0) -> None:
    """Do nothing. n: a number, so that the payload is not empty, default 0.

    >>> noop.enqueue(n=1)  # doctest: +SKIP
    42
    """


@handler("bench:stamp", queue="bench")
def stamp() -> float:
    """Return when this handler ran, in seconds since 1970 by the clock of this host.

    >>> stamp.enqueue()  # doctest: +SKIP
    42
    """
    return time.time()
