"""A supervisor whose page waits for as long as a test does: `python -m tests.dashboard.patient run ...`, or `dashboard`.

The page's own limits of two and three seconds are for people who wait for it; on a machine that
stands still for a moment they would be a complaint in a browser's console. Children are forked, and
have them from here.
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
    """Raise the limits, by these two."""
    from jobherd.workers.dashboard import database, fleet, listing

    set_attribute(database, "STATEMENT", LIMIT)
    set_attribute(database, "PATIENCE", LIMIT)
    set_item(database._SESSION, "connect_timeout", str(int(LIMIT)))
    set_attribute(fleet, "PATIENCE", LIMIT)
    set_item(listing.look.__kwdefaults__, "budget", LIMIT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        hold()  # as `python -m jobherd.supervisor` does before it loads the rest
    be_patient(setattr, operator.setitem)
    raise SystemExit(main())
