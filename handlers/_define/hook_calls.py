"""Calls the loaded hooks of an event, in their order.

The worker guards the calls and handles hooks that raise or hang. This module must not swallow what
a hook raises.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jobherd.handlers._define.hooks import (
    after_job,
    before_job,
    middleware,
    on_child_exit,
    on_child_start,
    on_failure,
)
from jobherd.handlers._run.call import call

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.hooks import Child, Event, Hook
    from jobherd.handlers._run.job import Job


@dataclass(frozen=True, slots=True)
class JobHooks:
    """The hooks of one kind's jobs, in the order of their calls."""

    before: tuple[Hook, ...]
    around: tuple[Hook, ...]
    failed: tuple[Hook, ...]
    after: tuple[Hook, ...]

    def call(self, handler: AnyHandler, job: Job, arguments: Mapping[str, Any]) -> object:
        """Call the handler inside its hooks and return the result. Raises what they raise."""
        for hook in self.before:
            hook.call_with(job)
        call_next: Callable[[], object] = partial(call, handler, job, arguments)
        for hook in reversed(self.around):
            call_next = partial(hook.function, job, call_next)
        return call_next()


class Hooks:
    """All loaded hooks.

    hooks: in the order of their declaration: modules by name, in a module by line.
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._open: list[tuple[Hook, Generator[Any, Any, Any]]] = []
        self._started = False

    def at(self, event: Event) -> tuple[Hook, ...]:
        """Return the hooks of an event."""
        return tuple(hook for hook in self._hooks if hook.event == event.name)

    def of_kind(self, kind: str) -> JobHooks | None:
        """Return the hooks around jobs of a kind, None if there are none.

        Hooks at the end of a job run in the reverse order of those at its start.
        """
        own = Hooks(hook for hook in self._hooks if not hook.kinds or kind in hook.kinds)
        found = JobHooks(own.at(before_job), own.at(middleware), own.at(on_failure)[::-1], own.at(after_job)[::-1])
        return found if any((found.before, found.around, found.failed, found.after)) else None

    def start(self, child: Child) -> None:
        """Run `on_child_start` and collect its results in `child.resources`.

        Raises what a hook raises, and TypeError for a result that is not a mapping.
        """
        for hook in self.at(on_child_start):
            given = hook.call_with(child)
            if inspect.isgenerator(given):
                generator, given = given, next(given, None)
                self._open.append((hook, generator))
            if given is not None and not (isinstance(given, dict) and all(isinstance(name, str) for name in given)):
                message = f'{hook!r} gave a {type(given).__name__}: give a dict of names, like yield {{"model": model}}'
                raise TypeError(message)
            child.resources.update(given or {})
        self._started = True

    def ends(self, child: Child) -> list[tuple[Hook, Callable[[], object]]]:
        """Return what to call when the worker exits, each group in reverse order.

        First the `on_child_exit` hooks, then the code after the yields. After a failed start only
        the generators that have started are finished.
        """
        exits: list[tuple[Hook, Callable[[], object]]] = []
        if self._started:
            exits += [(hook, partial(hook.call_with, child)) for hook in reversed(self.at(on_child_exit))]
        exits += [(hook, partial(_finish, generator)) for hook, generator in reversed(self._open)]
        self._open = []
        return exits


def _finish(generator: Generator[Any, Any, Any]) -> None:
    """Run a generator to its end. If it yields again, close it and raise RuntimeError."""
    with suppress(StopIteration):
        next(generator)
        generator.close()
        message = "on_child_start has yielded twice: yield the resources once, and clean up after the yield"
        raise RuntimeError(message)
