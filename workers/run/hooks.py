"""Calls hooks one at a time, each with a time limit.

A failing hook is logged and ends nothing else.

Hooks are user code, so they run like jobs: an interrupt can be raised only while they run, and no
exception gets past this module. A process whose hook was interrupted is not reused, as after an
interrupted job. If a hook cannot be interrupted, in C code or with signals blocked, the supervisor
kills the process. It reads the hook's time limit on the status board. Hooks that run inside a job's
own time, `before_job` and the middleware, are part of that job and belong to `executor.py`. This
module writes to no database.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from jobherd.handlers._run.dispositions import is_interruption
from jobherd.handlers._values.outcome import Raised
from jobherd.handlers._values.sanitize import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._define.hook_calls import Hooks, JobHooks
    from jobherd.handlers._define.hooks import Child
    from jobherd.handlers._run.job import Job
    from jobherd.handlers._values.outcome import Outcome
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.run.tracing import Spans

_log = logging.getLogger("jobherd.hooks")

LIMIT: Final = 5.0
"""Time limit, in seconds, of a hook outside a job's time."""


class HookCaller:
    """Calls hooks.

    child: the object that hooks of the process's life get.
    board: where the supervisor sees that a hook runs.
    interruption: why a hook was interrupted, in words, or empty. If it is set, the process is not reused.
    forward_output: called after hooks that belong to no job, because what they printed belongs to no job
    either.
    spans: records the spans of attempts, if this process has set up an OpenTelemetry SDK.
    """

    def __init__(self, hooks: Hooks, child: Child, interrupts: Interrupts, board: StatusBoard) -> None:
        self.hooks = hooks
        self.child = child
        self.interruption = ""
        self.forward_output: Callable[[], object] = _do_nothing
        self.spans: Spans | None = None
        self._interrupts = interrupts
        self._board = board

    def of_kind(self, kind: str) -> JobHooks | None:
        """Return the hooks around jobs of a kind, including those of their spans, or None."""
        own = self.hooks.of_kind(kind)
        return own if self.spans is None else self.spans.around(own)

    def call(self, name: object, step: Callable[[], object]) -> object:
        """Call `step` and return its result, or `Raised`, which is then already logged.

        name: the hook, for the log.
        """
        ending = self._attempt(step)
        if isinstance(ending, Raised):
            problem = ending.exception
            if is_interruption(problem):
                _log.error("%r did not end within %g s and was interrupted", name, LIMIT)
                return ending
            said = self._attempt(lambda: describe_exception(problem))  # an exception's own __str__ is user code too
            message, trace = said if isinstance(said, tuple) else (type(problem).__name__, "")
            _log.error("%r raised: %s\n%s", name, message, trace)
        return ending

    def _attempt(self, step: Callable[[], object]) -> object:
        interrupts = self._interrupts
        self._board.say_hook(time.monotonic() + LIMIT)
        before = interrupts.judge(LIMIT)
        ending: object
        # As in executor.py: an interrupt can be raised at any point between these two assignments,
        # and nowhere else.
        try:
            interrupts.open = True
            ending = step()
            interrupts.open = False
        except BaseException as problem:
            interrupts.open = False
            ending = Raised(problem)
        if interrupts.forked:
            os._exit(0)  # A copy that the hook has forked and that returned here.
        if (raised := interrupts.raised) is not None:
            self.interruption = f"a hook was interrupted by {type(raised).__name__}"
        interrupts.raised = raised or before  # After a job, the state guard sees the interruption there.
        interrupts.leave()
        self._board.say_hook(0.0)
        return ending

    def call_end_hooks(self, hooks: JobHooks, job: Job, outcome: Outcome, exception: BaseException | None) -> None:
        """Call the hooks of a kind with the outcome of an attempt."""
        if outcome.failed:
            for hook in hooks.failed:
                self.call(hook, lambda hook=hook: hook.call_with(job, outcome, exception))  # type: ignore[misc]
        for hook in hooks.after:
            self.call(hook, lambda hook=hook: hook.call_with(job, outcome))  # type: ignore[misc]

    def leave(self) -> None:
        """Run the hooks for the exit of the process."""
        for hook, end in self.hooks.ends(self.child):
            self.call(hook, end)
        self.forward_output()


def _do_nothing() -> None:
    """Do nothing: no caller keeps the output."""
