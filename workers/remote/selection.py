"""Chooses what a worker is connected to: the database, or the uplink of a supervisor without one.

It must not load protobuf for a worker that has a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._define.hooks import before_claim
from jobherd.workers.database.connection import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.hook_calls import Hooks
    from jobherd.workers.process.context import ChildContext


def session_of(
    context: ChildContext, handlers: Mapping[str, AnyHandler], hooks: Hooks, holding: Callable[[], Sequence[int]]
) -> Session:
    """Return the session of a worker with these handlers. holding: see `Session`."""
    spec, wake = context.spec, context.wake
    if spec.settings.uplink is None:
        return Session(spec, wake, holding, pinned=not hooks.at(before_claim))
    from jobherd.workers.remote.declaration import declared  # noqa: PLC0415 - they load protobuf
    from jobherd.workers.remote.session import RemoteSession  # noqa: PLC0415

    return RemoteSession(spec, wake, holding, spec.settings.uplink, declared(handlers))
