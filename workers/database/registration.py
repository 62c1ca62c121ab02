"""Sets up a session of a child process and registers it in `children`.

After a break, the old session is ended before the new one is registered. In the other order, the
old session could still commit a claim, and its jobs would wait for as long as this process lives.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd.workers.database.pooler import is_pooled
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.system.procfs import started

if TYPE_CHECKING:
    import psycopg

    from jobherd.workers.database.opening import Row
    from jobherd.workers.database.wire import Wire
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.process.wakeup import Wake

_SETTINGS: Final = ("session/disable_timeouts", "session/force_index_plans")
_PINNED: Final = (*_SETTINGS, "session/pin_search_path")
_ENDING: Final = 2.0
"""Seconds to wait for the end of the old session after the server was asked to end it. If this role
must not end it, the wait is one lease.
"""


class Registration(NamedTuple):
    """A session's row.

    child: number in `children`. backend: pid of the backend.
    pooled: a pooler is in between. It may run each transaction on another backend, and none belongs
    to this process.
    """

    child: int
    backend: int
    pooled: bool


def register(
    connection: psycopg.Connection[Row], wire: Wire, spec: ChildSpec, wake: Wake, *, pinned: bool, again: bool
) -> Registration:
    """Set up the session and return its registration.

    pinned: functions are found in pg_catalog only. again: this process had a session before.
    Raises psycopg.Error, StopWaiting if the supervisor's jobs were reclaimed, and OSError if no file
    descriptor is free to read when this process started.
    """
    [[(backend,)]] = wire.exchange(("session/show_backend", {}))
    pooled = is_pooled(connection.pgconn, backend)
    settings = [(name, {"local": pooled}) for name in (_PINNED if pinned else _SETTINGS)]
    if pooled:  # Session settings would stay with the backend, for the next client that gets it.
        wire.begin_each_with(*settings)
    else:
        wire.exchange(*settings, ("session/enable_keepalives", {}))
    me = {"supervisor": spec.supervisor, "incarnation": spec.incarnation}
    if again:
        _end_old_session(wire, me, wake, lease=spec.settings.lease)
    pid = os.getpid()
    own = {**me, "slot": spec.slot, "kind": spec.kind, "pid": pid, "pid_started": started(pid)}
    [rows] = wire.exchange(("lease/register_child", own))
    if not rows:
        message = f"supervisor {spec.supervisor} is not registered any more: another supervisor has reclaimed its jobs"
        raise StopWaiting(message)
    child, backend = rows[0]
    if pooled:
        wire.exchange(("recover/mark_shared_backend", {"child": child}))
    return Registration(child, backend, pooled)


def _end_old_session(wire: Wire, me: dict[str, int], wake: Wake, *, lease: float) -> None:
    """End the old session: it may still commit a claim whose response would never arrive."""
    since = time.monotonic()
    while True:
        [[(alive, refused)]] = wire.exchange(("recover/terminate_child_sessions", me))
        if not alive or time.monotonic() - since >= (lease if refused else _ENDING):
            return
        wake.wait(0.05)
