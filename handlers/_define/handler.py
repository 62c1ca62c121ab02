"""Turns a function into a handler.

A handler is a function with a kind and a policy. It can be called like the function, and it
enqueues jobs of its kind. The decorator registers nothing: the registry finds handlers in the
modules it loads, so importing a module does not change any worker.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from jobherd.handlers._define.batch import BatchSignature
from jobherd.handlers._define.definition_site import code_of, note_made, where_made
from jobherd.handlers._define.field_names import check_field_names
from jobherd.handlers._define.flow_nodes import Call
from jobherd.handlers._define.producer import Producer
from jobherd.handlers._define.signature import Signature
from jobherd.handlers._define.wrapping import plain
from jobherd.handlers._enqueue.options import Options
from jobherd.handlers._enqueue.rule import check_rule
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._policy.policy import Policy, check_policy
from jobherd.handlers._policy.schedule import Schedule
from jobherd.handlers._values.json_form import type_name, with_article
from jobherd.handlers._values.payload import check_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._policy.policy import BatchOptions, HandlerOptions
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
        schedules: when its jobs are enqueued periodically.
        file: file in which the handler is defined.
        line: line in that file.
        made: the module, file and line where it was created.
    """

    def __init__(self, function: Callable[C, R_co], kind: str, policy: Policy) -> None:
        function = plain(function)
        signature = Signature(function) if policy.batch is None else BatchSignature(function)
        weigh = policy.cost if callable(policy.cost) else None
        own = ("queue", "priority", "unique", "unique_for", "debounce", "max_wait", "throttle", "edge")
        options = Options(**{name: getattr(policy, name) for name in own})
        check_rule(options)
        check_field_names(signature, options, policy.partition or ())
        super().__init__(
            kind,
            signature,
            options,
            weigh=weigh,
            seal=bool(policy.encrypt),
        )
        self.function = function
        self.policy = policy
        self.schedules = _schedules(kind, policy, signature)
        self.made = where_made(function)
        self.file: str = self.made.file
        self.line: int = self.made.line
        # updated=(): the function's attributes must not replace the handler's
        functools.update_wrapper(self, function, updated=())
        note_made(self)

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the function directly, without a job."""
        return self.function(*args, **kwargs)

    def call(self, *args: object, **kwargs: object) -> Call[R_co]:
        """Return a job for a chain or a group: see `Producer.call`."""
        return Call(self, args, kwargs)

    def problems(self) -> list[str]:
        """Return a sentence for each parameter whose type payloads cannot be converted to.

        Never raises.
        """
        return self.signature.binding.problems

    def __repr__(self) -> str:
        return f"<Handler {self.kind} at {self.file}:{self.line}>"


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
def handler(kind: str | None = None, /, **options: Unpack[HandlerOptions]) -> Decorate: ...
@overload
def handler(kind: str | None = None, /, **options: Unpack[BatchOptions]) -> DecorateBatch: ...
def handler(kind: Any = None, /, **options: Any) -> Any:  # the overloads give the precise types
    """Make a function the handler of one kind of job.

    The keys of a job's payload are the function's parameters, and their annotations are checked. If
    the first parameter is annotated `Job`, or is called `job` without annotation, it gets the job.
    If the only other parameter is called `payload`, it gets the whole document. `async def` works
    the same.

    Args:
        kind: name of the jobs, such as "mail:receipt". Default: made from file and function, so
            `send` in `mail.py` is "mail:send", and `handle` in `mail/receipt.py` is "mail:receipt".
        options: see `HandlerOptions` and `BatchOptions`, and the table "Options" in
            docs/reference/handler-options.md, which gives the defaults.

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
            message = f"kind must be a name like 'mail:receipt', not {with_article(type_name(kind))}"
            raise TypeError(message)
        return Handler(kind, kind_of(kind), Policy())
    name = None if kind is None else check_kind(kind)
    policy = check_policy(**options)

    def decorate(function: Callable[C, R]) -> Handler[C, C, R]:
        return Handler(function, kind_of(function) if name is None else name, policy)

    return decorate


def _schedules(kind: str, policy: Policy, signature: Signature | BatchSignature) -> tuple[Schedule, ...]:
    """Return all schedules of a handler.

    Raises TypeError or ValueError if a payload cannot be the handler's: otherwise its first job
    would fail, perhaps at night.
    """
    found = policy.schedules
    if policy.cron is not None or policy.every is not None:
        found = (Schedule(kind, cron=policy.cron, every=policy.every, tz=policy.tz), *found)
    for one in found:
        check_payload(one.payload)
        if isinstance(signature, Signature) and not signature.whole:
            try:
                signature.payload((), one.payload)
            except TypeError as problem:
                message = f"schedule {one.name!r}: {problem}"
                raise TypeError(message) from None
    return found


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
