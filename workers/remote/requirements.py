"""Names what handlers and hooks need of a database, which a worker of `jobherd work` does not have.

It loads no protobuf: `jobherd check` asks it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._define.hooks import before_claim, on_death
from jobherd.handlers._define.table_store import TableHandler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.hook_calls import Hooks


def problems_of(handlers: Mapping[str, AnyHandler], hooks: Hooks) -> list[str]:
    """Return a sentence for each handler and hook that needs the database."""
    problems = [
        f"{handler.file}:{handler.line}: kind {handler.kind!r} {why}, and `jobherd work` has none: "
        "run it with `jobherd run`"
        for handler in handlers.values()
        if (why := _need(handler))
    ]
    problems += [
        f"{hook.file}:{hook.line}: `before_claim` decides in the database, and `jobherd work` has none"
        for hook in hooks.at(before_claim)
    ]
    return problems


def notes_of(handlers: Mapping[str, AnyHandler], hooks: Hooks) -> list[str]:
    """Return a sentence for each handler and hook of which a part has no effect without a database."""
    notes = [
        f"{handler.file}:{handler.line}: kind {handler.kind!r} {what}"
        for handler in handlers.values()
        for what in _unused(handler)
    ]
    notes += [f"{hook.file}:{hook.line}: `jobherd work` does not call `on_death` hooks" for hook in hooks.at(on_death)]
    return notes


def _unused(handler: AnyHandler) -> Iterator[str]:
    policy = handler.policy
    if policy.rate is not None:
        yield "declares a rate, which `jobherd work` cannot set: set it with `jobherd limit`"
    if policy.cron is not None or policy.every is not None or policy.schedules:
        yield (
            "declares schedules, which `jobherd work` cannot store: load it in `jobherd run` as well, or add them "
            "with `jobherd schedule`"
        )


def _need(handler: AnyHandler) -> str:
    if isinstance(handler, TableHandler):
        return "works a table of the database"
    return "is transactional, which needs a connection to the database" if handler.policy.transactional else ""
