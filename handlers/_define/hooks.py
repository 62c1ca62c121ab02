"""Hooks around jobs and around a worker's life, and middleware that wraps the handler.

A decorator declares a hook. The registry finds hooks in the modules it loads, as it finds handlers;
importing a module registers nothing. This module defines what a hook is and the order in which
hooks run. The worker guards the calls and handles hooks that raise or hang. This module must not
swallow what a hook raises.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from jobherd.handlers._define.definition_site import Made, note_made, where_made
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._run.call import call

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._run.job import Job

    Function: TypeAlias = Callable[..., object]


@dataclass(slots=True)
class Child:
    """The worker, as its hooks see it."""

    slot: int = 0
    """Number of its slot, from 0. A replacement of the worker has the same slot."""
    host: str = "localhost"
    """Name of the host."""
    resources: dict[str, Any] = field(default_factory=dict)
    """What `on_child_start` returned or yielded: the mapping that jobs see as `job.resources`."""


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A function that is called at an event. Created by decorators such as `on_child_start`.

    Calling the hook calls the function.
    """

    event: str
    """Name of the decorator."""
    function: Function
    kinds: frozenset[str]
    """Kinds of the jobs it is called for; empty: all."""
    takes: int
    """How many of the event's arguments the function takes."""
    made: Made

    @property
    def file(self) -> str:
        """File in which the hook is defined."""
        return self.made.file

    @property
    def line(self) -> int:
        """The line in that file."""
        return self.made.line

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function directly."""
        return self.function(*args, **kwargs)

    def tell(self, *told: object) -> object:
        """Call the function with as many of the event's arguments as it takes."""
        return self.function(*told[: self.takes])

    def __repr__(self) -> str:
        return f"<{self.event} at {self.file}:{self.line}>"


class Event:
    """An event at which hooks are called, and the decorator for it.

    name: name of the decorator.
    gives: the arguments of a hook. A hook may take only the first ones.
    of_jobs: whether a hook can be limited to certain kinds.
    may_yield: whether the hook may be a generator.
    needs_all: whether the hook must take every argument.
    """

    def __init__(
        self,
        name: str,
        *gives: str,
        of_jobs: bool = False,
        may_yield: bool = False,
        needs_all: bool = False,
        about: str,
    ) -> None:
        self.name = name
        self.__doc__ = about
        self._gives = gives
        self._of_jobs = of_jobs
        self._may_yield = may_yield
        self._needs_all = needs_all

    @overload
    def __call__(self, function: Function, /) -> Hook: ...
    @overload
    def __call__(self, *kinds: str) -> Callable[[Function], Hook]: ...
    def __call__(self, *given: Any) -> Any:
        """Declare a function as a hook: `@event` for all kinds, `@event("mail:receipt")` for some.

        Raises TypeError or ValueError when the function is decorated. The message names the event
        and the fix.
        """
        if len(given) == 1 and inspect.isroutine(given[0]):
            return self._declare(given[0], frozenset())
        if given and not self._of_jobs:
            message = f"{self.name} is not about jobs and takes no kinds: write @{self.name}"
            raise TypeError(message)
        kinds = frozenset(check_kind(kind) for kind in given)
        return partial(self._declare, kinds=kinds)

    def _declare(self, function: Function, kinds: frozenset[str]) -> Hook:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"{self.name} takes a plain function, not an `async def`; asyncio.run(...) inside it runs a coroutine"
            )
            raise TypeError(message)
        if inspect.isgeneratorfunction(function) and not self._may_yield:
            message = f"{self.name} takes a plain function, no generator: only on_child_start may yield, once"
            raise TypeError(message)
        hook = Hook(self.name, function, kinds, self._taken(function), where_made(function))
        note_made(hook)
        return hook

    def _taken(self, function: Function) -> int:
        """Return how many of the event's arguments the function takes.

        Raises TypeError if it cannot be called with them.
        """
        taken = 0
        must = 0
        for parameter in inspect.signature(function).parameters.values():
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    taken = len(self._gives)
                case parameter.POSITIONAL_ONLY | parameter.POSITIONAL_OR_KEYWORD:
                    taken += 1
                    must += parameter.default is parameter.empty
                case parameter.KEYWORD_ONLY if parameter.default is parameter.empty:
                    must = len(self._gives) + 1
        if must > len(self._gives) or (self._needs_all and taken < len(self._gives)):
            message = f"{self.name} calls its function as ({', '.join(self._gives)}); {getattr(function, '__name__', 'it')} cannot be called so"
            raise TypeError(message)
        return min(taken, len(self._gives))


on_child_start: Final = Event(
    "on_child_start",
    "child",
    may_yield=True,
    about="""Called in each new child before its first job. What it returns, or yields, is a mapping that becomes part of `job.resources`.

    A generator yields once; what stands behind the yield runs when the child leaves. If it raises, the child ends and is tried again
    after a rest.

    >>> @on_child_start
    ... def model():
    ...     yield {"model": "loaded"}
    """,
)
before_claim: Final = Event(
    "before_claim",
    "child",
    about="""Called before a child claims: False, and it claims nothing for now; an `Only`, and it claims nothing else; None, and it does.

    It is asked again a second later, or when there is news. Of several hooks, what all of them let through is claimed. One that
    raises lets nothing through.

    >>> @before_claim
    ... def by_day(child):
    ...     return Only(forbidden_flags=["nightly"])
    """,
)
before_job: Final = Event(
    "before_job",
    "job",
    of_jobs=True,
    about="""Called before the handler, inside the job's time. What it raises is as if the handler had raised it: `Nack`, `Poison`...

    >>> @before_job("mail:receipt")
    ... def note(job):
    ...     job.log.info("begins")
    """,
)
after_job: Final = Event(
    "after_job",
    "job",
    "outcome",
    of_jobs=True,
    about="""Called when an attempt is over, however it ended, with its `Outcome`; not if its process has died. It changes nothing.

    >>> @after_job
    ... def count(job, outcome):
    ...     print(job.kind, outcome.label)
    """,
)
on_failure: Final = Event(
    "on_failure",
    "job",
    "outcome",
    "exception",
    of_jobs=True,
    about="""Called before `after_job` when an attempt has failed, with the exception or None if the handler returned its failure.

    >>> @on_failure
    ... def complain(job, outcome, exception):
    ...     print(job.kind, outcome.error)
    """,
)
on_child_exit: Final = Event(
    "on_child_exit",
    "child",
    about="""Called when a child leaves by itself; not if it is killed.

    >>> @on_child_exit
    ... def flush(child):
    ...     print("bye")
    """,
)
on_death: Final = Event(
    "on_death",
    "job",
    "post_mortem",
    of_jobs=True,
    about="""Called when a process has died with a job, after its outcome is recorded, with the post-mortem: a dict, as `jobherd job` shows it.

    It is called in a separate process, not in the worker that died, and `job.resources` is empty there. It is called at most once for each
    death. Processes that a drain or a cancel has ended are left out.

    >>> @on_death
    ... def report(job, post_mortem):
    ...     print(job.kind, job.id, post_mortem["sentence"])
    """,
)
middleware: Final = Event(
    "middleware",
    "job",
    "call_next",
    of_jobs=True,
    needs_all=True,
    about="""Called instead of the handler; `call_next()` calls it and returns its result, a coroutine's value included.

    What it returns is the result, what it raises is as if the handler had raised it. The first one declared is the outermost.

    >>> @middleware
    ... def timed(job, call_next):
    ...     return call_next()
    """,
)


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
            hook.tell(job)
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
            given = hook.tell(child)
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
            exits += [(hook, partial(hook.tell, child)) for hook in reversed(self.at(on_child_exit))]
        exits += [(hook, partial(_finish, generator)) for hook, generator in reversed(self._open)]
        self._open = []
        return exits


def _finish(generator: Generator[Any, Any, Any]) -> None:
    """Run a generator to its end. If it yields again, close it and raise RuntimeError."""
    with suppress(StopIteration):
        next(generator)
        generator.close()
        message = "on_child_start has yielded twice: what a child needs is yielded once, what stands behind the yield cleans up"
        raise RuntimeError(message)
