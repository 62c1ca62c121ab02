"""Declares hooks around jobs and around a worker's life, and middleware that wraps the handler.

The registry finds hooks in the modules it loads, as it finds handlers; importing a module registers
nothing.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from jobherd.handlers._define.definition_site import Made, note_made, where_made
from jobherd.handlers._policy.names import check_kind

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def call_with(self, *given: object) -> object:
        """Call the function with as many of the event's arguments as it takes."""
        return self.function(*given[: self.takes])

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
            message = (
                f"{self.name} calls its function as ({', '.join(self._gives)}); "
                f"{getattr(function, '__name__', 'it')} cannot be called so"
            )
            raise TypeError(message)
        return min(taken, len(self._gives))


on_child_start: Final = Event(
    "on_child_start",
    "child",
    may_yield=True,
    about="""Call the function in each new worker, before its first job.

    The mapping that it returns, or yields once, becomes part of `job.resources`. The code after the
    yield runs when the worker exits. If the function raises, the worker exits, and the supervisor
    starts it again after a pause.

    >>> @on_child_start
    ... def model():
    ...     yield {"model": "loaded"}
    """,
)
before_claim: Final = Event(
    "before_claim",
    "child",
    about="""Call the function before a worker claims jobs.

    If it returns False, the worker claims nothing and calls it again after 1 s, or when there is new
    work. If it returns an `Only`, the worker claims only jobs that match. If there are several hooks,
    a job must pass all of them. If a hook raises, the worker claims nothing.

    >>> @before_claim
    ... def by_day(child):
    ...     return Only(forbidden_flags=["nightly"])
    """,
)
before_job: Final = Event(
    "before_job",
    "job",
    of_jobs=True,
    about="""Call the function before the handler. Its time counts towards the job's timeout.

    What it raises has the effect that it would have in the handler: `Nack`, `Poison` and others.

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
    about="""Call the function when an attempt has ended, with its `Outcome`.

    It cannot change the outcome. It is not called if the worker died.

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
    about="""Call the function when an attempt has failed, before `after_job`.

    It gets the exception, or None if the handler returned its failure.

    >>> @on_failure
    ... def complain(job, outcome, exception):
    ...     print(job.kind, outcome.error)
    """,
)
on_child_exit: Final = Event(
    "on_child_exit",
    "child",
    about="""Call the function when a worker exits in an orderly way, not if it is killed.

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
    about="""Call the function when a process has died with a job, after its outcome is recorded.

    It gets the post-mortem, a dict, as `jobherd job` shows it. It runs in another process than the
    one that died, where `job.resources` is empty, at most once for each death. It is not called for
    processes that a drain or a cancel has ended.

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
    about="""Call the function instead of the handler; `call_next()` calls the handler and returns its result.

    The result of a coroutine is its value. What the function returns is the job's result. What it
    raises has the effect that it would have in the handler. The middleware that is declared first is
    the outermost.

    >>> @middleware
    ... def timed(job, call_next):
    ...     return call_next()
    """,
)
