"""Starts a worker: loads its handlers, runs its start hooks and `Worker`, returns the exit code."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.hooks import Child, on_death
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_REQUESTED, HasDeathHooks, send
from jobherd.workers.process.exits import forget_inherited, run_exits
from jobherd.workers.remote.requirements import notes_of, problems_of
from jobherd.workers.run.hooks import HookCaller
from jobherd.workers.run.loading import load_handlers, report_problem
from jobherd.workers.run.tracing import spans
from jobherd.workers.settle.settler import UnsettledError
from jobherd.workers.worker import Worker

if TYPE_CHECKING:
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSettings

_log = logging.getLogger("jobherd.worker")

_EXIT_UNSETTLED: Final = 70
_EXIT_HOOKS: Final = 71


def run(context: ChildContext) -> int:
    """Live as a worker and return the exit code.

    Signals must be unblocked, and nothing of the supervisor may be left in this process.
    """
    settings = context.spec.settings
    forget_inherited()
    # Handlers enqueue into the database of their own job. One connection, opened only when a
    # handler needs it.
    configure(client=_client(settings))
    loaded = load_handlers(context)
    if loaded is None:
        return EXIT_HANDLERS
    handlers, hooks = loaded
    if settings.uplink is not None:
        problems = problems_of(handlers, hooks)
        for problem in problems or notes_of(handlers, hooks):
            report_problem(context, problem)
        if problems:
            return EXIT_HANDLERS
    caller = HookCaller(hooks, Child(context.spec.slot, settings.host), context.interrupts, context.spec.board)
    if not begin(context, caller):
        return _EXIT_HOOKS
    if hooks.at(on_death) and settings.uplink is None:  # They run in the maintenance process.
        send(context.spec.report, HasDeathHooks())
    caller.spans = spans()  # Queried once: an application that wants spans has set up the SDK by now.
    worker = None
    try:
        worker = Worker(context, handlers, caller)
        return worker.live()
    except StopWaiting as reason:
        _log.info("exiting: %s", reason)
        return EXIT_REQUESTED
    except UnsettledError as problem:
        _log.error("exiting with outcomes that are not recorded; the supervisor records them: %s", problem)
        return _EXIT_UNSETTLED
    finally:
        caller.leave()
        caller.call("an atexit callback", run_exits)
        if worker is not None:
            worker.forward_output()
            worker.close()


def _client(settings: ChildSettings) -> Client:
    if settings.uplink is None:
        return Client(settings.dsn, schema=settings.schema, max_size=1)
    from jobherd.workers.remote.client import UplinkClient  # noqa: PLC0415 - it loads protobuf

    return UplinkClient(settings.uplink.folder, schema=settings.schema)


def begin(context: ChildContext, caller: HookCaller) -> bool:
    """Run `on_child_start`, within the time that a child process has to become ready.

    Return False if a hook raised. The problem is then reported to the supervisor.
    """
    try:
        caller.hooks.start(caller.child)
    # A resource of the hook may be unavailable for a while: the process exits and is restarted.
    except BaseException as problem:
        message, trace = describe_exception(problem)
        report_problem(context, f"on_child_start raised {message}\n{trace}")
        caller.leave()
        caller.call("an atexit callback", run_exits)
        return False
    if context.interrupts.forked:
        os._exit(EXIT_REQUESTED)  # A copy that the hook has forked and that returned here: the slot is not its own.
    if changed := _restore(context.interrupts, context.blocked):
        _log.warning(
            "a module of handlers or on_child_start has changed %s; restored, so that jobs can be interrupted",
            ", ".join(changed),
        )
    return True


def _restore(interrupts: Interrupts, blocked: frozenset[int]) -> list[str]:
    """Restore what a job's interruption depends on, and return what had been changed.

    If the check after a claim found the change, it would count as a job's doing. Each new worker
    would then exit before its first job.
    """
    changed = []
    if not interrupts.is_intact():
        interrupts.restore()
        changed.append("signal handlers")
    if signal.pthread_sigmask(signal.SIG_SETMASK, blocked) != blocked:
        changed.append("which signals are blocked")
    if not interrupts.timer.rearm_if_touched():
        changed.append("the interval timer")
    return changed
