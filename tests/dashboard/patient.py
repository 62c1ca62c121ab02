"""A supervisor whose dashboard has the time limits of a test: `python -m tests.dashboard.patient run ...`, or `dashboard`.

The dashboard's own limits are 2 s and 3 s. If the machine stalls, they would cause an error in the
browser's console and fail a test. Child processes are forked, so they inherit the raised limits.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

from jobherd.supervisor.__main__ import main
from jobherd.supervisor.process.signals import hold
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable


def be_patient(set_attribute: Callable[[Any, str, Any], object], set_item: Callable[[Any, str, Any], object]) -> None:
    """Raise the limits with these two functions, such as those of `monkeypatch`."""
    from jobherd.workers.dashboard import database, fleet, job_search

    set_attribute(database, "STATEMENT", LIMIT)
    set_attribute(database, "PATIENCE", LIMIT)
    set_item(database._SESSION, "connect_timeout", str(int(LIMIT)))
    set_attribute(fleet, "PATIENCE", LIMIT)
    set_item(job_search.search_jobs.__kwdefaults__, "budget", LIMIT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        hold()  # as `python -m jobherd.supervisor` does before it loads the rest
    be_patient(setattr, operator.setitem)
    raise SystemExit(main())
