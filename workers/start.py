"""How a worker's life begins and how it ends: its handlers, the hooks of its start, then `Worker`, and what its exit code says of the end."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.hooks import Child, before_claim, on_death
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.database.connection import Left
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_LEFT, Mourns, send
from jobherd.workers.process.exits import forget_inherited, run_exits
from jobherd.workers.run.hooks import Caller
from jobherd.workers.run.loading import load_handlers, say_problem
from jobherd.workers.run.tracing import spans
from jobherd.workers.settle.settler import UnsettledError
from jobherd.workers.worker import Worker

if TYPE_CHECKING:
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.interrupt import Interrupts

_log = logging.getLogger("jobherd.worker")

_EXIT_UNSETTLED: Final = 70
_EXIT_HOOKS: Final = 71


def run(context: ChildContext) -> int:
    """Live as a worker and return the exit code. Signals are unblocked, nothing of the parent's is left."""
    settings = context.spec.settings
    forget_inherited()
    # What handlers enqueue goes where this job came from. One connection, and only once a handler asks for it.
    configure(client=Client(settings.dsn, schema=settings.schema, max_size=1))
    loaded = load_handlers(context)
    if loaded is None:
        return EXIT_HANDLERS
    handlers, hooks = loaded
    caller = Caller(hooks, Child(context.spec.slot, settings.host), context.interrupts, context.spec.board)
    if not begin(context, caller):
        return _EXIT_HOOKS
    if hooks.at(on_death):
        send(context.spec.report, Mourns())
    caller.spans = spans()  # asked once: whoever wants spans has set up the SDK by now
    worker = None
    try:
        worker = Worker(context, handlers, caller, claimer_of(context, caller))
        return worker.live()
    except Left as reason:
        _log.info("leaving: %s", reason)
        return EXIT_LEFT
    except UnsettledError as problem:
        _log.error("leaving it to the supervisor: %s", problem)
        return _EXIT_UNSETTLED
    finally:
        caller.leave()
        caller.call("an atexit callback", run_exits)
        if worker is not None:
            worker.pass_on()
            worker.close()


def begin(context: ChildContext, caller: Caller) -> bool:
    """Run `on_child_start`, for as long as a child may take until it is ready. False if a hook raised: then the parent has been told."""
    try:
        caller.hooks.start(caller.child)
    except BaseException as problem:  # what a hook needs may be away for a while: the child ends and is tried again
        message, trace = describe_exception(problem)
        say_problem(context, f"on_child_start raised {message}\n{trace}")
        caller.leave()
        caller.call("an atexit callback", run_exits)
        return False
    if context.interrupts.forked:
        os._exit(EXIT_LEFT)  # a copy that the hook has forked and that came back: the seat is not its own
    if changed := _put_back(context.interrupts, context.blocked):
        _log.warning("a module of handlers or on_child_start has changed %s; put back, or no job could be interrupted", ", ".join(changed))
    return True


def _put_back(interrupts: Interrupts, blocked: frozenset[int]) -> list[str]:
    """Put back what keeps a job from being interrupted; return what somebody had changed of it.

    Left to the look that follows a claim, it would be taken for a job's doing: each new worker would leave at once, before its first.
    """
    changed = []
    if not interrupts.is_intact():
        interrupts.restore()
        changed.append("signal handlers")
    if signal.pthread_sigmask(signal.SIG_SETMASK, blocked) != blocked:
        changed.append("which signals are blocked")
    if not interrupts.rearm_if_touched():
        changed.append("the interval timer")
    return changed


def claimer_of(context: ChildContext, hooks: Caller) -> type[Claimer]:
    """Return how this child claims: it asks before it does only if a hook wants to be asked or there is a budget."""
    if hooks.hooks.at(before_claim) or context.spec.settings.budget:
        from jobherd.workers.claim.filtered import FilteredClaimer  # noqa: PLC0415  # only in such a child

        return FilteredClaimer
    return Claimer
