"""Converts a payload to the arguments of a handler, and back.

A handler's signature is the contract for its payload: keys are parameters, annotations are checked.
The signature is read once and turned into a list of converters; binding a payload is one loop over
them. Converters are built on first use, when every name in the annotations exists. Binding must not
coerce: "7" is not an int, True is not an int, 7 is a float. Values that JSON cannot express travel
as text and are rebuilt from their annotation (dates, UUID, Decimal, Enum, dataclasses).
"""

from __future__ import annotations

import contextlib
import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack, get_args, get_origin, get_type_hints

from jobherd.handlers._define.wrapping import annotated, name_of, parameters_of
from jobherd.handlers._run.job import Job
from jobherd.handlers._values.converters import UNKNOWN, converter_for, describe_type
from jobherd.handlers._values.fidelity import compare
from jobherd.handlers._values.misfit import Misfit, path_step
from jobherd.handlers._values.payload import PayloadError
from jobherd.handlers._values.shapes import fields_of, resolve_each
from jobherd.handlers._values.traits import Traits, traits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._values.scalars import Convert

Slot: TypeAlias = "tuple[str, Any, Convert | None, bool]"
"""One parameter: its name, the type whose values are passed unchanged, the converter for other
values (None: anything is accepted), whether the payload must have it."""
_AS_THEY_ARE: Final = frozenset({int, str, bool, float})

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
BYTES: Final = "payload_bytes"
"""A parameter of this name gets the job's bytes, which are not part of the document."""
WHOLE: Final = "payload"
"""A handler whose only parameter has this name gets the whole document, of any type."""


class BindingError(PayloadError):
    """A payload does not fit the handler's parameters.

    The message names the place and the expected type, never the value.
    """


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
                message = f"{name}: parameter {parameter.name!r} has no name that a payload could use: write it without * or /"
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
            message = "the job has payload_bytes, and the handler has neither a parameter payload_bytes nor one that takes the Job"
            raise BindingError(message, BYTES)
        if data is not None and self.takes_bytes:
            arguments[BYTES] = data

    @property
    def binding(self) -> Binding:
        """Converter from payloads to arguments.

        Built on first use, when all names in annotations exist.
        """
        if self._binding is None:
            self._binding = Binding(self)
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
            message = f"{self.name} has no parameter {min(given.keys() - self.names)!r}{_known(self.names)}"
            raise TypeError(message)
        if not self.required <= given.keys():
            message = f"{self.name} needs {min(self.required - given.keys())!r}"
            raise TypeError(message)
        if self.whole:
            return given.get(WHOLE)
        return given


class Binding:
    """A signature with resolved annotations: converts payloads to keyword arguments."""

    def __init__(self, signature: Signature) -> None:
        self.takes_job: Final = signature.takes_job
        hints, self.unchecked = signature.hints()
        slots = [
            (
                parameter.name,
                _as_it_is(hints.get(parameter.name)),
                converter_for(hints[parameter.name]) if parameter.name in hints else None,
                parameter.name in signature.required,
            )
            for parameter in signature.parameters
        ]
        self._open = signature.open
        self._names = signature.names
        self._rest: Convert | None = None
        rest = None if signature.rest is None else hints.pop(signature.rest.name, Any)
        if get_origin(rest) is Unpack:  # of a TypedDict: its keys are ordinary parameters
            fields = fields_of(get_args(rest)[0])
            slots += [
                (field.name, _as_it_is(field.hint), converter_for(field.hint), field.required) for field in fields
            ]
            hints |= {field.name: field.hint for field in fields}
            self._open, self._names = False, self._names | {field.name for field in fields}
        elif rest is not None:
            self._rest = converter_for(rest)
        self.slots: Final[tuple[Slot, ...]] = tuple(slots)
        self._whole = signature.whole
        self._hints = hints
        self._rest_hint = rest if self._open else None
        self._expected = {name: describe_type(hint) for name, hint in hints.items()}

    @cached_property
    def _traits(self) -> dict[str, Traits]:
        """Properties of each annotation, by parameter name; those of `**more` under "**"."""
        known = {name: traits(hint) for name, hint in self._hints.items()}
        return known if self._rest_hint is None else known | {"**": traits(self._rest_hint)}

    @cached_property
    def problems(self) -> list[str]:
        """Return a sentence for each parameter whose type no converter supports."""
        return [
            f"parameter {name!r} is annotated {kind}, {UNKNOWN}"
            for name, one in self._traits.items()
            for kind in one.unknown
        ]

    @cached_property
    def is_wide(self) -> bool:
        """Whether arguments have sets, or keys that are text in JSON only."""
        return any(one.wide for one in self._traits.values())

    @cached_property
    def _compared(self) -> dict[str, frozenset[type]]:
        """Parameters whose arguments may arrive changed, with their `Traits.own`."""
        if self.is_wide:  # a set given for any other parameter would arrive as a list
            return dict.fromkeys([*self._names, "**"], frozenset()) | {n: one.own for n, one in self._traits.items()}
        return {name: one.own for name, one in self._traits.items() if one.compared}

    def takes_alone(self, kind: type) -> bool:
        """Return whether the only parameter is annotated with exactly this class.

        A named tuple may be such a class.
        """
        return len(self._hints) == len(self._names) == 1 and kind in self._hints.values()

    def compare(self, payload: Any, arguments: Mapping[str, object]) -> None:
        """Compare a producer's values with the arguments that the handler will get.

        Raises BindingError with the place that differs.
        """
        if not self._compared:
            return
        given = {WHOLE: payload} if self._whole else payload
        for name, argument in arguments.items():
            own = self._compared.get(name if name in self._names else "**")
            if own is None or name not in given:
                continue
            try:
                compare(given[name], argument, own)
            except Misfit as misfit:
                raise self._error(name, misfit) from None

    def _error(self, name: str, misfit: Misfit) -> BindingError:
        path = ("$" if self._whole else f"${path_step(name)}") + "".join(reversed(misfit.steps))
        return BindingError(f"payload at {path} {misfit.reason}", path)

    def bind(self, payload: object) -> dict[str, Any]:
        """Return the keyword arguments for `payload`.

        Raises BindingError naming the first place that does not fit.

        payload: a decoded document. If the handler's only parameter is called `payload`, any
            document is accepted; otherwise it must be an object.
        """
        if self._whole:
            payload = {WHOLE: payload}
        elif not isinstance(payload, dict):
            message = f"payload at $ must be an object with the handler's parameters as keys, not {_json_name(payload)}"
            raise BindingError(message, "$")
        arguments: dict[str, Any] = {}
        for name, plain, convert, required in self.slots:
            if name in payload:
                value = payload[name]
                if type(value) is plain or convert is None:
                    arguments[name] = value
                    continue
                try:
                    arguments[name] = convert(value)
                except Misfit as misfit:
                    raise self._error(name, misfit) from None
            elif required:
                expected = f", expected {self._expected[name]}" if name in self._expected else ""
                message = f"payload at $.{name} is missing{expected}"
                raise BindingError(message, f"$.{name}")
        if len(arguments) != len(payload):
            rest = {name: value for name, value in payload.items() if name not in arguments}
            if not self._open:
                name = min(rest)[:80]
                message = f"payload at $ has a key {name!r} that the handler has no parameter for{_known(self._names)}"
                raise BindingError(message, "$")
            for name, value in rest.items():
                try:
                    arguments[name] = value if self._rest is None else self._rest(value)
                except Misfit as misfit:
                    raise self._error(name, misfit) from None
        return arguments


def _as_it_is(hint: object) -> type | None:
    return hint if isinstance(hint, type) and hint in _AS_THEY_ARE else None


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


def _known(names: frozenset[str]) -> str:
    return f"; it has {', '.join(sorted(names))}" if names else "; it has none"


def _json_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an array"
    return "an object"
