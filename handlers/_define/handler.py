"""Turns a function into a handler.

A handler is a function with a kind and a policy. It can be called like the function, and it
enqueues jobs of its kind. The decorator registers nothing: the registry finds handlers in the
modules it loads, so importing a module does not change any worker.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from jobherd.handlers._define.batch import BatchSignature
from jobherd.handlers._define.definition_site import code_of, note_made, where_made
from jobherd.handlers._define.producer import Producer
from jobherd.handlers._define.signature import Signature
from jobherd.handlers._define.wrapping import plain
from jobherd.handlers._enqueue.options import Options
from jobherd.handlers._policy.backoff import DEFAULT
from jobherd.handlers._policy.policy import Policy, check_kind, check_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._policy.backoff import BackoffLike
    from jobherd.handlers._policy.durations import Duration
    from jobherd.handlers._policy.policy import ErrorsLike
    from jobherd.handlers._run.job import Job

P = ParamSpec("P")
C = ParamSpec("C")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

USUAL = "handle"
"""A function of this name adds nothing to the kind: `handle` in `mail/receipt.py` is
`mail:receipt`."""


class Handler(Producer[P], Generic[P, C, R_co]):
    """A function that processes jobs of one kind. Created by the decorator `handler`.

    Attributes:
        kind: name of its jobs.
        function: the decorated function.
        policy: its checked options.
        file: file in which the handler is defined.
        line: line in that file.
        made: the module, file and line where it was created.
    """

    def __init__(self, function: Callable[C, R_co], kind: str, policy: Policy) -> None:
        function = plain(function)
        signature = Signature(function) if policy.batch is None else BatchSignature(function)
        weigh = policy.cost if callable(policy.cost) else None
        super().__init__(
            kind,
            signature,
            Options(queue=policy.queue, priority=policy.priority),
            weigh=weigh,
            seal=bool(policy.encrypt),
        )
        self.function = function
        self.policy = policy
        self.made = where_made(function)
        self.file: str = self.made.file
        self.line: int = self.made.line
        # updated=(): the function's attributes must not replace the handler's
        functools.update_wrapper(self, function, updated=())
        note_made(self)

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the function directly, without a job."""
        return self.function(*args, **kwargs)

    def problems(self) -> list[str]:
        """Return a sentence for each parameter whose type payloads cannot be converted to.

        Never raises.
        """
        return self.signature.binding.problems

    def __repr__(self) -> str:
        return f"<Handler {self.kind} at {self.file}:{self.line}>"


Cost: TypeAlias = "Mapping[str, float] | Callable[[Any], Mapping[str, float]]"
AnyHandler: TypeAlias = "Handler[Any, Any, Any]"


class Decorate(Protocol):
    """What `handler(...)` returns: a decorator from a function to its Handler."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Handler[P, Concatenate[Job, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...


class DecorateBatch(Protocol):
    """What `handler(..., batch=N)` returns: a decorator from a function to its Handler.

    The Handler enqueues one payload per job.
    """

    @overload
    def __call__(self, function: Callable[[list[Job]], R], /) -> Handler[[object], [list[Job]], R]: ...
    @overload
    def __call__(self, function: Callable[[list[Job], list[T]], R], /) -> Handler[[T], [list[Job], list[T]], R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> Handler[[T], [list[T]], R]: ...


@overload
def handler(kind: Callable[Concatenate[Job, P], R], /) -> Handler[P, Concatenate[Job, P], R]: ...
@overload
def handler(kind: Callable[P, R], /) -> Handler[P, P, R]: ...
@overload
def handler(
    kind: str | None = None,
    /,
    *,
    queue: str = ...,
    priority: int = ...,
    timeout: Duration = ...,
    max_attempts: int = ...,
    max_crashes: int = ...,
    backoff: BackoffLike = ...,
    retry_on: ErrorsLike | None = ...,
    poison_on: ErrorsLike = ...,
    backoff_on: Mapping[type[BaseException] | str, BackoffLike] = ...,
    exclusive: bool = ...,
    max_running: int | None = ...,
    transactional: bool = ...,
    keep_completed: Duration = ...,
    keep_failed: Duration = ...,
    cost: Cost = ...,
    flags: Sequence[str] = ...,
    redact: Sequence[str] = ...,
    encrypt: bool | Literal["only"] = ...,
) -> Decorate: ...
@overload
def handler(
    kind: str | None = None,
    /,
    *,
    batch: int,
    linger: Duration = ...,
    queue: str = ...,
    priority: int = ...,
    timeout: Duration = ...,
    max_attempts: int = ...,
    max_crashes: int = ...,
    backoff: BackoffLike = ...,
    retry_on: ErrorsLike | None = ...,
    poison_on: ErrorsLike = ...,
    backoff_on: Mapping[type[BaseException] | str, BackoffLike] = ...,
    exclusive: bool = ...,
    max_running: int | None = ...,
    keep_completed: Duration = ...,
    keep_failed: Duration = ...,
    cost: Cost = ...,
    flags: Sequence[str] = ...,
    redact: Sequence[str] = ...,
    encrypt: bool | Literal["only"] = ...,
) -> DecorateBatch: ...
def handler(  # one parameter for each option
    kind: Any = None,  # the overloads give the precise types
    /,
    *,
    queue: str = "default",
    priority: int = 0,
    timeout: Duration = "5m",
    max_attempts: int = 5,
    max_crashes: int = 3,
    backoff: BackoffLike = DEFAULT,
    retry_on: ErrorsLike | None = None,
    poison_on: ErrorsLike = (),
    backoff_on: Mapping[type[BaseException] | str, BackoffLike] | None = None,
    exclusive: bool = False,
    max_running: int | None = None,
    transactional: bool = False,
    keep_completed: Duration = "7d",
    keep_failed: Duration = "30d",
    batch: int | None = None,
    linger: Duration = 0,
    cost: Cost | None = None,
    flags: Sequence[str] = (),
    redact: Sequence[str] = (),
    encrypt: bool | Literal["only"] = False,
) -> Any:
    """Make a function the handler of one kind of job.

    The keys of a job's payload are the function's parameters, and their annotations are checked. If
    the first parameter is annotated `Job`, or is called `job` without annotation, it gets the job.
    If the only other parameter is called `payload`, it gets the whole document. `async def` works
    the same.

    Args:
        kind: name of the jobs, such as "mail:receipt". Default: made from file and function, so
            `send` in `mail.py` is "mail:send", and `handle` in `mail/receipt.py` is "mail:receipt".
        queue: queue of the jobs, default "default".
        priority: lower numbers run first, default 0.
        timeout: longest duration of one attempt, default "5m".
        max_attempts: attempts before a job fails permanently, default 5.
        max_crashes: processes that may die while running the job, default 3.
        backoff: delay after a failed attempt: a `Backoff`, one duration, a list of durations, or a
            function from the number of attempts to a duration. Default: 30 s, doubled after each
            attempt, at most 1 h, with a jitter of 20 %.
        retry_on: exceptions that are retried; all others fail the job at once. Default None: retry
            all.
        poison_on: exceptions that fail the job at once, as `Poison` does. Default: none.
        backoff_on: other delays for certain exceptions. Default: none.
        exclusive: never run an attempt while another one is still running, not even briefly after a
            lost lease. Default False.
        max_running: concurrency limit of the kind over all hosts, unless `jobherd limit` has set
            another one. Default None: limited only by the number of workers.
        transactional: run each attempt in a transaction, `job.connection`, that commits together
            with the job's completion. A failed attempt leaves nothing in the database. Default
            False. For a transaction around a part of a handler see `Job.transaction`.
        keep_completed: how long to keep completed jobs, rounded up to days, default "7d". 0 writes
            nothing for a completed job: looking it up or waiting for it finds no such job.
        keep_failed: how long to keep failed jobs, rounded up to days, default "30d".
        batch: most jobs in one call, 1 to 500. The function gets a list of jobs, a list of
            payloads, or both. It returns None if all succeeded, a list of answers in order, or a
            dict of answers by job id. Default None: one job per call.
        linger: how long a batch that is not full waits for more jobs when the queue is empty,
            default 0, at most 60 s.
        cost: resources of the host that a running job uses, amounts by name, such as
            {"memory_mb": 900}, or a function from the payload to them, called when the job is
            enqueued with the handler. For a batch handler: the resources of one call. Default:
            nothing.
        flags: labels of the kind, such as ("gpu",), that a `before_claim` hook can forbid. Default:
            none.
        redact: parts of payload and result that the dashboard never shows, such as
            ["$.card", "$.items[*].code", "$..password"]. Default: none. See docs/page.md for what
            it does not cover.
        encrypt: encrypt payloads, results, errors and logs with the keys in the environment before
            they are written. "only" also rejects payloads that arrive unencrypted. Default False.
            See docs/security.md.

    Returns:
        The `Handler`, or a decorator that returns it.

    Raises:
        TypeError, ValueError: an option is invalid. Raised when the function is decorated; the
            message names the option, the value and the fix.

    Example:
        >>> @handler("mail:receipt", timeout="30s")
        ... def receipt(order_id: int) -> None:
        ...     print(f"sent {order_id}")
        >>> receipt(7)
        sent 7
    """
    if kind is not None and not isinstance(kind, str):
        if not inspect.isroutine(kind):
            message = f"kind must be a name like 'mail:receipt', not a {type(kind).__name__}"
            raise TypeError(message)
        return Handler(kind, kind_of(kind), Policy())
    name = None if kind is None else check_kind(kind)
    policy = check_policy(
        queue=queue,
        priority=priority,
        timeout=timeout,
        max_attempts=max_attempts,
        max_crashes=max_crashes,
        backoff=backoff,
        retry_on=retry_on,
        poison_on=poison_on,
        backoff_on={} if backoff_on is None else backoff_on,
        exclusive=exclusive,
        max_running=max_running,
        transactional=transactional,
        keep_completed=keep_completed,
        keep_failed=keep_failed,
        batch=batch,
        linger=linger,
        cost={} if cost is None else cost,
        flags=flags,
        redact=redact,
        encrypt=encrypt,
    )

    def decorate(function: Callable[C, R]) -> Handler[C, C, R]:
        return Handler(function, kind_of(function) if name is None else name, policy)

    return decorate


def kind_of(function: Callable[..., object]) -> str:
    """Return the kind made from a function's file and name.

    Raises ValueError if they give no valid name. The module's name is not used: producer, worker
    and script may import one file under three names and must agree on the kind.
    """
    code = code_of(function)
    file = code.co_filename if code is not None else ""
    if not file or file.startswith("<"):  # written in C, or typed at a prompt
        parts = [*getattr(function, "__module__", "__main__").split(".")[-1:], function.__name__]
    else:
        path = os.path.splitext(os.path.abspath(file))[0].removesuffix(os.sep + "__init__")
        folder, stem = os.path.split(path)
        parts = [os.path.basename(folder), stem] if function.__name__ == USUAL else [stem, function.__name__]
    try:
        return check_kind(":".join(part for part in parts if part != "__main__"))
    except ValueError as problem:
        message = f"{problem}; name it yourself: @handler('mail:receipt')"
        raise ValueError(message) from None
