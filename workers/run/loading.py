"""Finds and loads the handlers and hooks of a worker, or reports the problem to the supervisor.

It runs none of them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._load.registry import HOOKS, all_hooks, load, notes_of
from jobherd.handlers._load.trust import find_fault
from jobherd.handlers._values.sanitize import loading, sanitize
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, Problem, send
from jobherd.workers.process.logs import keep_factory_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.spec import ChildSettings

_log = logging.getLogger("jobherd.worker")


def load_handlers(context: ChildContext) -> tuple[dict[str, AnyHandler], Hooks] | None:
    """Load handlers and hooks.

    If a module is broken or no handler is found, report the reason to the supervisor and return
    None.
    """
    settings = context.spec.settings
    sys.dont_write_bytecode = settings.reload or sys.dont_write_bytecode
    if problem := put_on_path(settings.app_dir):
        report_problem(context, problem)
        return None
    loading(time.time())
    found, more = load(settings.handlers), load(settings.hooks, named=HOOKS)
    if context.interrupts.forked:
        # A copy that a module has forked at import and that returned here. It would write to the
        # original's status board.
        os._exit(EXIT_REQUESTED)
    keep_factory_quiet()
    problems = [str(problem) for problem in found.problems + more.problems]
    if not found.kinds and not problems:
        problems.append(none_found_message(settings.handlers))
    own = own_handlers(settings)
    for kind, handler in own.items():
        if (other := found.kinds.get(kind, handler)) is not handler:
            problems.append(
                f"{other.file}:{other.line}: kind {kind!r} belongs to Jobherd: give this handler another name"
            )
    for problem in (*problems, *map(str, notes_of(found, more))):
        report_problem(context, problem)
    return None if problems else (found.kinds | own, Hooks(all_hooks(more, found)))


def put_on_path(app_dir: str | os.PathLike[str]) -> str:
    """Put the application's folder first on the import path, if the folder still exists.

    Returns why it must not be there, or an empty string. If another OS user can write to it, that
    user could add a module that replaces any other.
    """
    with suppress(FileNotFoundError):
        if fault := find_fault(app_dir):
            return (
                f"{sanitize(fault.place, 1000)}: the application's folder, from which modules are imported "
                f"(setting app_dir): {sanitize(fault.message, 2000)}"
            )
        sys.path.insert(0, os.path.realpath(app_dir))
    return ""


def own_handlers(settings: ChildSettings) -> dict[str, AnyHandler]:
    """Return Jobherd's own handlers, which workers have only if the settings require them."""
    if not settings.webhook_secret:
        return {}
    from jobherd.handlers import jobs_webhook  # noqa: PLC0415 - http and ssl are 2 MB that few workers need

    jobs_webhook.set_rules(
        jobs_webhook.Rules(settings.webhook_secret, settings.webhook_allow, settings.webhook_timeout)
    )
    return {jobs_webhook.deliver.kind: jobs_webhook.deliver}


def report_problem(context: ChildContext, problem: str) -> None:
    """Report a problem in the user's code to the supervisor."""
    if not send(context.spec.report, Problem(problem)):  # The supervisor logs it, once for all workers.
        _log.error("%s", problem)


def none_found_message(sources: Sequence[str]) -> str:
    """Return the message for sources that contain no handler. `jobherd check` prints the same."""
    if not sources:
        return (
            "no handlers are configured, and the working directory has no folder handlers/ of your own: create it, "
            "pass --handlers PATH, or set JOBHERD_HANDLERS"
        )
    return (
        f"no handler was found in {', '.join(sources)}: decorate a function with @handler(...), in a module "
        "whose name begins with no underscore"
    )
