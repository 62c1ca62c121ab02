"""Reads a handler's signature, the contract for its payload: keys are parameters.

The signature is read once. Its binding, which converts payloads, is built on first use, when every
name in the annotations exists.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from jobherd.handlers._define.binding import WHOLE, Binding, BindingError, known_names
from jobherd.handlers._define.wrapping import annotated, name_of, parameters_of
from jobherd.handlers._run.job import Job
from jobherd.handlers._values.shapes import resolve_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
BYTES: Final = "payload_bytes"
"""A parameter of this name gets the job's bytes, which are not part of the document."""


class Signature:
    """What a function shows without resolving its annotations.

    That is enough to reject an invalid handler where it is declared.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        name = name_of(function)
        code = inspect.unwrap(function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            message = f"{name} has a yield, so calling it would only make a generator: return a value, or nothing"
            raise TypeError(message)
        parameters = parameters_of(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_job = bool(parameters) and _is_job(parameters[0])
        if self.takes_job:
            del parameters[0]
        self.rest: inspect.Parameter | None = None
        """The parameter for keys that no other parameter has: `**more`."""
        self.takes_bytes = any(parameter.name == BYTES for parameter in parameters)
        """Whether the job's bytes are an argument."""
        self.needs_bytes = any(
            parameter.name == BYTES and parameter.default is inspect.Parameter.empty for parameter in parameters
        )
        self.parameters: list[inspect.Parameter] = []
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self.rest = parameter
            elif parameter.kind not in _NAMED:
                message = (
                    f"{name}: parameter {parameter.name!r} has no name that a payload could use: "
                    "write it without * or /"
                )
                raise TypeError(message)
            elif parameter.name != BYTES:
                self.parameters.append(parameter)
        self.open = self.rest is not None
        self._binding: Binding | None = None
        self.function = function
        self.name = name
        self.names = frozenset(parameter.name for parameter in self.parameters)
        self.required = frozenset(p.name for p in self.parameters if p.default is inspect.Parameter.empty)
        self.whole = not self.open and [parameter.name for parameter in self.parameters] == [WHOLE]

    def hints(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return a payload's resolved annotations, and the names that cannot be resolved."""
        return resolve_hints(self.function, self.parameters if self.rest is None else [*self.parameters, self.rest])

    def take_bytes(self, arguments: dict[str, Any], data: bytes | None) -> None:
        """Add the job's bytes to the arguments.

        Raises BindingError if the handler needs bytes and there are none, or if it could not read
        them.
        """
        if data is None and self.needs_bytes:
            message = "the job has no payload_bytes, and the handler needs them: enqueue it with payload_bytes=..."
            raise BindingError(message, BYTES)
        if data is not None and not self.takes_bytes and not self.takes_job:
            message = (
                "the job has payload_bytes, and the handler has neither a parameter payload_bytes "
                "nor one that takes the Job"
            )
            raise BindingError(message, BYTES)
        if data is not None and self.takes_bytes:
            arguments[BYTES] = data

    @property
    def binding(self) -> Binding:
        """Converter from payloads to arguments.

        Built on first use, when all names in annotations exist.
        """
        if self._binding is None:
            self._binding = Binding(self, *self.hints())
        return self._binding

    def payload(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> object:
        """Return the payload for a call with these arguments.

        Raises TypeError as the call would.
        """
        if arguments:
            if len(arguments) > len(self.parameters):
                message = f"{self.name} takes {len(self.parameters)} arguments, {len(arguments)} were given"
                raise TypeError(message)
            given: dict[str, object] = {}
            for parameter, value in zip(self.parameters, arguments, strict=False):
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    message = f"{self.name} takes {parameter.name!r} by name only"
                    raise TypeError(message)
                if parameter.name in named:
                    message = f"{self.name} got {parameter.name!r} twice"
                    raise TypeError(message)
                given[parameter.name] = value
            given.update(named)
        else:
            given = dict(named)
        if not self.open and not given.keys() <= self.names:
            message = f"{self.name} has no parameter {min(given.keys() - self.names)!r}{known_names(self.names)}"
            raise TypeError(message)
        if not self.required <= given.keys():
            message = f"{self.name} needs {min(self.required - given.keys())!r}"
            raise TypeError(message)
        if self.whole:
            return given.get(WHOLE)
        return given


def _is_job(parameter: inspect.Parameter) -> bool:
    if parameter.kind not in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return False
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return parameter.name == "job"
    if isinstance(annotation, str):
        return annotation.strip("'\" ").rpartition(".")[2] == Job.__name__
    return annotation is Job


def resolve_hints(
    function: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the resolved annotations, and the names of those that cannot be resolved.

    Arguments with an unresolved annotation are passed unchanged.
    """
    function = annotated(function)
    given = {p.name: p.annotation for p in parameters if p.annotation is not inspect.Parameter.empty}
    with contextlib.suppress(Exception):  # one unresolved name fails the whole call; then each is resolved separately
        known = get_type_hints(function, include_extras=True)
        return {name: known[name] for name in given if name in known}, ()
    module, names = getattr(function, "__module__", ""), getattr(function, "__globals__", {})
    found = resolve_each(given, module=module, names=names)
    return found, tuple(name for name in given if name not in found)
