"""The jobs of `jobherd bench`, which puts them into a schema of its own: one that does nothing, one that says when it started.

Nothing here may do more than that: what these jobs cost is taken for what Jobherd costs. They do no harm elsewhere either.
"""

from __future__ import annotations

import time

from jobherd import handler


@handler("bench:noop", queue="bench")
def noop(n: int = 0) -> None:
    """Do nothing. n: a number for the payload to have something in it, default 0.

    >>> noop.enqueue(n=1)  # doctest: +SKIP
    42
    """


@handler("bench:stamp", queue="bench")
def stamp() -> float:
    """Return when this statement ran, in seconds since 1970 by the clock of this host.

    >>> stamp.enqueue()  # doctest: +SKIP
    42
    """
    return time.time()
