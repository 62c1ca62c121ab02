"""The decorator that makes a function a handler.

A handler is the function, its kind and its policy. It can be called like the function, and it produces jobs for itself. Decorating
registers nothing anywhere: the registry finds handlers in the modules it loads, so importing a module has no effect on any worker.
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
"""A function of this name is not part of its kind's name: `handle` in `mail/receipt.py` is `mail:receipt`."""


class Handler(Producer[P], Generic[P, C, R_co]):
    """A function that works on jobs of one kind. Made by `handler`.

    kind: its name. function: what was decorated. policy: its options, checked. file, line: where it is written. made: where it was made.
    """

    def __init__(self, function: Callable[C, R_co], kind: str, policy: Policy) -> None:
        function = plain(function)
        signature = Signature(function) if policy.batch is None else BatchSignature(function)
        weigh = policy.cost if callable(policy.cost) else None
        super().__init__(kind, signature, Options(queue=policy.queue, priority=policy.priority), weigh=weigh, seal=bool(policy.encrypt))
        self.function = function
        self.policy = policy
        self.made = where_made(function)
        self.file: str = self.made.file
        self.line: int = self.made.line
        functools.update_wrapper(self, function, updated=())  # its own attributes must not replace ours
        note_made(self)

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def problems(self) -> list[str]:
        """Return why payloads cannot become its arguments, in sentences: parameters of types that are not known. Never raises."""
        return self.signature.binding.problems

    def __repr__(self) -> str:
        return f"<Handler {self.kind} at {self.file}:{self.line}>"


Cost: TypeAlias = "Mapping[str, float] | Callable[[Any], Mapping[str, float]]"
AnyHandler: TypeAlias = "Handler[Any, Any, Any]"


class Decorate(Protocol):
    """What `handler(...)` returns: takes the function and gives the Handler."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Handler[P, Concatenate[Job, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...


class DecorateBatch(Protocol):
    """What `handler(..., batch=N)` returns: takes the function and gives the Handler, which enqueues one payload a job."""

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
    kind: Any = None,  # the overloads say more
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
    """Make a function a handler: the keys of a job's payload are its parameters, their annotations are checked.

    A first parameter annotated `Job` (or called `job`, without annotation) gets the job. A handler whose only other parameter is
    called `payload` takes any document whole. `async def` works the same.

    kind: the handler's name, like "mail:receipt"; default from file and function: `send` in `mail.py` is "mail:send", and
        `handle` in `mail/receipt.py` is "mail:receipt".
    queue: where its jobs wait, default "default". priority: lower numbers first, default 0.
    timeout: a span of time for one attempt, default 5 min.
    max_attempts: before a job fails for good, default 5. max_crashes: processes that may die with it, default 3.
    backoff: the wait after a failed attempt: a Backoff (default 30 s, doubling, up to 1 h, spread by 20 %), one span, a list of
        spans, or a function from the number of attempts to a span.
    retry_on: only these exceptions are tried again, others fail the job at once; default None: all are.
    poison_on: these exceptions fail the job at once, as `Poison` does. backoff_on: other waits for some exceptions.
    exclusive: never two runs at once, not even for a moment after a lost lease, default False.
    max_running: how many jobs of the kind run at a time over all hosts, unless somebody has set another cap (`jobherd cap`); default
        None: as many as there are workers.
    transactional: each attempt runs in a transaction, `job.connection`, that is committed together with the job's completion, and of an
        attempt that fails nothing is left in the database, default False. See `Job.transaction` for a part of a handler.
    keep_completed, keep_failed: how long jobs are kept when they are over, default 7 and 30 days, rounded up to days.
        keep_completed=0 writes nothing of a job that went well: whoever looks it up, or waits for it, finds no such job.
    batch: the function takes up to so many jobs in one call, 1 to 500, as a list of jobs, a list of payloads, or both; it returns None
        if all went well, or a list of answers in order, or a dict of answers by job id. Default None: one job a call.
    linger: how long a batch that is not full waits for more jobs when the queue is empty, default 0, at most 60 s.
    cost: what a job of it takes of its host while it runs, amounts by name, like {"memory_mb": 900}, or a function from the payload to
        them, asked where the job is enqueued with the handler; default nothing. Of a batch handler: what one call takes.
    flags: words about the kind, like ("gpu",), that a `before_claim` hook may forbid; default none.
    redact: parts of the payload and the result that the page never shows, like ["$.card", "$.items[*].code", "$..password"]; default none.
        See docs/page.md for what it does not cover.
    encrypt: payloads, results, errors and logs of it are encrypted with the keys of the environment before they are written, default False;
        "only" also refuses a payload that came in clear. See docs/security.md.

    Raises ValueError or TypeError at the decoration, naming the field, the value and the remedy.

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
    """Return the kind that the place of a function stands for: its file and its name. Raises ValueError if they make no name.

    The module's name is not part of it: producer, worker and script may import one file under three names, and must agree.
    """
    code = code_of(function)
    file = code.co_filename if code is not None else ""
    if not file or file.startswith("<"):  # of C, or typed at a prompt
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
