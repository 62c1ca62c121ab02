"""The calls of hooks: under the alarm, one by one, each with a limit of its own; what one does wrong is logged and ends nothing else.

Hooks are user code, so they run like jobs: only while the alarm is open, and an exception never gets further than here. A hook that was
torn out leaves the process as unfit as a job that was; one that cannot be, in C or with signals blocked, is ended by the parent, which reads on
the board how long it may take. Hooks that run inside a job's own time, `before_job` and the middleware, are part
of that job and belong to `execute.py`. This module writes to no database.
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

    from jobherd.handlers._define.hooks import Child, Hooks, JobHooks
    from jobherd.handlers._run.job import Job
    from jobherd.handlers._values.outcome import Outcome
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.run.tracing import Spans

_log = logging.getLogger("jobherd.hooks")

LIMIT: Final = 5.0
"""Seconds that a hook outside of a job's time may take."""
FAILURES: Final = frozenset({"retry", "failed", "poison"})
"""Labels of outcomes that `on_failure` hears of."""


class Caller:
    """Calls hooks.

    child: what the hooks of its life see. board: where the parent sees that one runs. torn: a hook was interrupted, in words, or nothing: then the process is not reused.
    pass_on: called after hooks that belong to no job: what they printed is no job's either.
    spans: where the spans of attempts go, if this process has set up an OpenTelemetry SDK.
    """

    def __init__(self, hooks: Hooks, child: Child, interrupts: Interrupts, board: StatusBoard) -> None:
        self.hooks = hooks
        self.child = child
        self.torn = ""
        self.pass_on: Callable[[], object] = _nobody
        self.spans: Spans | None = None
        self._interrupts = interrupts
        self._board = board

    def of_kind(self, kind: str) -> JobHooks | None:
        """Return the hooks around jobs of a kind, those of their spans among them; None if there are none."""
        own = self.hooks.of_kind(kind)
        return own if self.spans is None else self.spans.around(own)

    def call(self, name: object, step: Callable[[], object]) -> object:
        """Call `step` and return what it returns, or `Raised`, which has been logged then. `name`: who it is, for the log."""
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
        # As in execute.py: between these two stores anything may be raised, and nothing anywhere else.
        try:
            interrupts.open = True
            ending = step()
            interrupts.open = False
        except BaseException as problem:
            interrupts.open = False
            ending = Raised(problem)
        if interrupts.forked:
            os._exit(0)  # a copy that the hook has forked and that came back
        if (torn := interrupts.raised) is not None:
            self.torn = f"a hook was torn out by {type(torn).__name__}"
        interrupts.raised = torn or before  # after a job whoever examines the process sees it there
        interrupts.leave()
        self._board.say_hook(0.0)
        return ending

    def tell_end(self, hooks: JobHooks, job: Job, outcome: Outcome, exception: BaseException | None) -> None:
        """Tell the hooks of a kind what became of an attempt."""
        if outcome.label in FAILURES:
            for hook in hooks.failed:
                self.call(hook, lambda hook=hook: hook.tell(job, outcome, exception))  # type: ignore[misc]
        for hook in hooks.after:
            self.call(hook, lambda hook=hook: hook.tell(job, outcome))  # type: ignore[misc]

    def leave(self) -> None:
        """The child leaves: run what was declared for that."""
        for hook, end in self.hooks.ends(self.child):
            self.call(hook, end)
        self.pass_on()


def _nobody() -> None:
    """Nobody keeps what is printed here."""
