"""Converts a payload to a handler's keyword arguments, and compares a producer's arguments.

Binding a payload is one loop over a list of converters. Binding must not coerce: "7" is not an int,
True is not an int, 7 is a float. Values that JSON cannot express travel as text and are rebuilt
from their annotation (dates, UUID, Decimal, Enum, dataclasses).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, Unpack, get_args, get_origin

import orjson

from jobherd.handlers._values.converters import UNKNOWN, converter_for, describe_type
from jobherd.handlers._values.fidelity import compare
from jobherd.handlers._values.misfit import Misfit, path_step
from jobherd.handlers._values.payload import PayloadError, decode_payload
from jobherd.handlers._values.shapes import fields_of
from jobherd.handlers._values.traits import Traits, traits

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from jobherd.handlers._values.scalars import Convert

Slot: TypeAlias = "tuple[str, Any, Convert | None, bool]"
"""One parameter: its name, the type whose values are passed unchanged, the converter for other
values (None: anything is accepted), whether the payload must have it."""
_AS_THEY_ARE: Final = frozenset({int, str, bool, float})
_EXACT: Final = frozenset({int, str, bool})

WHOLE: Final = "payload"
"""A handler whose only parameter has this name gets the whole document, of any type."""


class BindingError(PayloadError):
    """A payload does not fit the handler's parameters.

    The message names the place and the expected type, never the value.
    """


class Parameters(Protocol):
    """What a binding needs from a signature."""

    parameters: list[inspect.Parameter]
    names: frozenset[str]
    required: frozenset[str]
    rest: inspect.Parameter | None
    whole: bool


class Binding:
    """A signature with resolved annotations: converts payloads to keyword arguments.

    unchecked: names of the parameters whose annotation cannot be resolved.
    """

    def __init__(self, signature: Parameters, hints: dict[str, Any], unchecked: tuple[str, ...]) -> None:
        self.unchecked = unchecked
        slots = [
            (
                parameter.name,
                _as_it_is(hints.get(parameter.name)),
                converter_for(hints[parameter.name]) if parameter.name in hints else None,
                parameter.name in signature.required,
            )
            for parameter in signature.parameters
        ]
        self.is_open = signature.rest is not None
        """Whether the payload may have further keys."""
        self._names = signature.names
        self._rest: Convert | None = None
        rest = None if signature.rest is None else hints.pop(signature.rest.name, Any)
        if get_origin(rest) is Unpack:  # of a TypedDict: its keys are ordinary parameters
            fields = fields_of(get_args(rest)[0])
            slots += [
                (field.name, _as_it_is(field.hint), converter_for(field.hint), field.required) for field in fields
            ]
            hints |= {field.name: field.hint for field in fields}
            self.is_open, self._names = False, self._names | {field.name for field in fields}
        elif rest is not None:
            self._rest = converter_for(rest)
        self.slots: Final[tuple[Slot, ...]] = tuple(slots)
        self._whole = signature.whole
        self._names_in_order = tuple(name for name, _, _, _ in slots)
        types = tuple(plain for _, plain, _, _ in slots)
        self._exact = () if signature.whole or not _EXACT.issuperset(types) else types
        """Types of the values in that order, if orjson reads all of them exactly. Empty: it may not."""
        self._hints = hints
        self._rest_hint = rest if self.is_open else None
        self._expected = {name: describe_type(hint) for name, hint in hints.items()}

    @property
    def parameters(self) -> list[tuple[str, Any, bool]]:
        """Name and annotation of each parameter, and whether the payload must have it."""
        return [(name, self._hints.get(name, Any), required) for name, _, _, required in self.slots]

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

    def read(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments for the payload in `text`. Raises as `decode_payload` and `bind`."""
        if self._exact:
            try:
                payload = orjson.loads(text)
            except orjson.JSONDecodeError:
                payload = None
            # Cost: the usual document, as producers in Python write it, in half the time. An integer
            # that orjson would round is a float here.
            if (
                type(payload) is dict
                and tuple(payload) == self._names_in_order
                and tuple(map(type, payload.values())) == self._exact
            ):
                return payload
        return self.bind(decode_payload(text))

    def bind(self, payload: object, later: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the keyword arguments for `payload`.

        Raises BindingError naming the first place that does not fit.

        payload: a decoded document. If the handler's only parameter is called `payload`, any
            document is accepted; otherwise it must be an object.
        later: names that may be missing.
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
            elif required and name not in later:
                expected = f", expected {self._expected[name]}" if name in self._expected else ""
                message = f"payload at $.{name} is missing{expected}"
                raise BindingError(message, f"$.{name}")
        if len(arguments) != len(payload):
            rest = {name: value for name, value in payload.items() if name not in arguments}
            if not self.is_open:
                name = min(rest)[:80]
                message = (
                    f"payload at $ has a key {name!r} that the handler has no parameter for{known_names(self._names)}"
                )
                raise BindingError(message, "$")
            for name, value in rest.items():
                try:
                    arguments[name] = value if self._rest is None else self._rest(value)
                except Misfit as misfit:
                    raise self._error(name, misfit) from None
        return arguments


def _as_it_is(hint: object) -> type | None:
    return hint if isinstance(hint, type) and hint in _AS_THEY_ARE else None


def known_names(names: frozenset[str]) -> str:
    """Return the end of a message about a name that a handler does not have."""
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
