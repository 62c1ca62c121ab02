from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd import BindingError, Job, Json, PayloadError, check_payload, handler
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from nowhere import Unknown


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class Customer:
    name: str
    address: Address
    tags: list[str] = field(default_factory=list)
    parent: Customer | None = None
    label: str = field(init=False, default="")

    def __post_init__(self):
        if not self.name:
            raise ValueError("a customer has a name")
        self.label = self.name.upper()


class Options(TypedDict):
    width: int
    height: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: int


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    items: list[T]
    total: int = 0


@dataclass
class IntPage(Page[int]):
    next: IntPage | None = None


UserId = NewType("UserId", int)


def one(annotation, value):
    """Bind one parameter with this annotation and return its argument."""

    def function(x): ...

    function.__annotations__ = {"x": annotation}
    return handler("demo:one")(function).binding.bind({"x": value})["x"]


MOMENT = datetime(2025, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value", "argument"),
    [
        (int, 7, 7),
        (int, 10**500, 10**500),
        (float, 7, 7.0),
        (float, 0.5, 0.5),
        (str, "", ""),
        (bool, False, False),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (object, 5, 5),
        (Optional[int], None, None),  # noqa: UP045
        (Optional[int], 5, 5),  # noqa: UP045
        (int | str, "x", "x"),
        (float | None, 7, 7.0),
        (int | float, 7, 7),
        (Union[list[int], dict[str, int]], {"a": 1}, {"a": 1}),
        (datetime | str, "2025-01-31T12:00:00+00:00", MOMENT),
        (datetime | str, "soon", "soon"),
        (datetime | None, "2025-01-31T12:00:00Z", MOMENT),
        (list, [1, "x"], [1, "x"]),
        (list[int], [1, 2], [1, 2]),
        (Sequence[int], [1, 2], [1, 2]),
        (list[list[float]], [[1], [2.5]], [[1.0], [2.5]]),
        (tuple, [1, 2], (1, 2)),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (tuple[int, str], [1, "x"], (1, "x")),
        (set[int], [1, 1, 2], {1, 2}),
        (frozenset[str], ["a"], frozenset("a")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[str, Any], {"a": 1}, {"a": 1}),
        (Mapping[Color, float], {"red": 1}, {Color.RED: 1.0}),
        (Literal["a", 1, None], "a", "a"),  # noqa: PYI061
        (Literal["a", 1, None], None, None),  # noqa: PYI061
        (Color, "red", Color.RED),
        (Literal[Color.RED], "red", Color.RED),
        (Level, 2, Level.HIGH),
        (Flags, 3, Flags.A | Flags.B),
        (datetime, "2025-01-31T12:00:00+00:00", MOMENT),
        (date, "2025-01-31", date(2025, 1, 31)),
        (time, "12:05:00", time(12, 5)),
        (UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (Decimal, "12.50", Decimal("12.50")),
        (Decimal, 12, Decimal(12)),
        (Annotated[int, "positive"], 5, 5),
        (UserId, 5, 5),
        (Address, {"street": "Low Road"}, Address("Low Road")),
        (list[Address], [{"street": "a", "number": 2}], [Address("a", 2)]),
        (Options, {"width": 1}, {"width": 1}),
        (Options, {"width": 1, "height": 2}, {"width": 1, "height": 2}),
        (Pair, [1, 2], Pair(1, 2)),
        (Pair, {"a": 1, "b": 2}, Pair(1, 2)),
        (Page[int], {"items": [1], "total": 1}, Page([1], 1)),
        (IntPage, {"items": [1]}, IntPage([1])),
        (datetime | date, "2030-01-31", date(2030, 1, 31)),
        ("int", 5, 5),
        ("list[Address]", [{"street": "a"}], [Address("a")]),
    ],
)
def test_valid_value_is_converted_to_its_annotation(annotation, value, argument):
    found = one(annotation, value)
    assert found == argument
    assert type(found) is type(argument)


@pytest.mark.parametrize(
    ("annotation", "value", "path", "says"),
    [
        (int, "7", "$.x", "must be int, not str"),
        (int, True, "$.x", "must be int, not bool"),
        (int, 7.0, "$.x", "must be int, not float"),
        (int, None, "$.x", "must be int, not null"),
        (float, True, "$.x", "must be float, not bool"),
        (float, 10**400, "$.x", "too large"),
        (str, 7, "$.x", "must be str, not int"),
        (str, {}, "$.x", "must be str, not an object"),
        (bool, 1, "$.x", "must be bool, not int"),
        (None, 1, "$.x", "must be null"),
        (Optional[int], "x", "$.x", "must be int | None, not str"),  # noqa: UP045
        (int | str, [], "$.x", "must be int | str, not an array"),
        (list[int] | None, [1, "x"], "$.x[1]", "must be int, not str"),
        (list[int], {"a": 1}, "$.x", "must be an array, not an object"),
        (list[int], [1, 2, None], "$.x[2]", "must be int, not null"),
        (tuple[int, str], [1], "$.x", "an array with 2 items, not an array with 1"),
        (tuple[int, str], [1, 2], "$.x[1]", "must be str"),
        (set[Any], [[1]], "$.x", "members of a set"),
        (dict[str, int], {"a": "b"}, "$.x.a", "must be int"),
        (dict[str, int], {"a b": "b"}, '$.x["a b"]', "must be int"),
        (dict[str, list[int]], {"a": [1, "b"]}, "$.x.a[1]", "must be int"),
        (dict[Color, int], {"green": 1}, "$.x.green", "must be Color"),
        (Literal["a", 1], True, "$.x", "one of 'a', 1"),
        (Literal["a", 1], [], "$.x", "not an array"),
        (Color, "green", "$.x", "must be Color, one of 'red', 'blue'"),
        (Color, [], "$.x", "must be Color"),
        (Level, True, "$.x", "must be Level"),
        (datetime, "soon", "$.x", "2025-01-31T12:00:00+00:00"),
        (datetime, 5, "$.x", "not int"),
        (datetime, "2030-01-31", "$.x", "a date and time with a zone"),
        (datetime, "2030-01-31T12:00:00", "$.x", "a date and time with a zone"),
        (bytes, "anything", "$.x", "is annotated bytes, which Jobherd cannot convert from JSON"),
        (list[Path], ["a"], "$.x[0]", "is annotated Path"),
        (Page[int], {"items": ["a"]}, "$.x.items[0]", "must be int"),
        (date, "2025-02-31", "$.x", "a date"),
        (UUID, "7", "$.x", "a UUID"),
        (Decimal, "x", "$.x", "Decimal"),
        (Decimal, "NaN", "$.x", "finite"),
        (Decimal, 1.5, "$.x", "Decimal"),
        (Address, {}, "$.x", "lacks the field 'street' of Address"),
        (Address, {"street": 5}, "$.x.street", "must be str"),
        (Address, {"street": "a", "town": "b"}, "$.x", "'town' that Address has no field for"),
        (Address, [], "$.x", "an object with the fields of Address"),
        (
            list[Customer],
            [{"name": "", "address": {"street": "a"}}],
            "$.x[0]",
            "cannot become a Customer: ValueError: a customer has a name",
        ),
        (Customer, {"name": "a", "address": {"street": "a", "number": "1"}}, "$.x.address.number", "must be int"),
        (Options, {}, "$.x", "lacks the field 'width'"),
        (Options, {"width": 1, "height": "2"}, "$.x.height", "must be int"),
    ],
)
def test_error_for_an_invalid_value_names_its_path(annotation, value, path, says):
    with pytest.raises(BindingError) as caught:
        one(annotation, value)
    assert caught.value.path == path
    assert path in str(caught.value)
    assert says in str(caught.value)
    assert isinstance(caught.value, PayloadError)


def test_binding_error_never_contains_the_value():
    with pytest.raises(BindingError) as caught:
        one(dict[str, int], {"password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_recursive_type_is_checked_at_every_level():
    inner = {"name": "b", "address": {"street": "x"}}
    bound = one(Customer, {"name": "a", "address": {"street": "x"}, "parent": inner})
    assert bound.parent.name == "b"
    with pytest.raises(BindingError, match=r"\$\.x\.parent"):
        one(Customer, {"name": "a", "address": {"street": "x"}, "parent": inner | {"parent": {"name": 5}}})


def test_dataclass_with_derived_fields_survives_the_round_trip():
    customer = Customer("a", Address("b"), ["t"], Customer("c", Address("d")))
    assert one(Customer, decode_payload(check_payload(customer))) == customer


@handler("demo:mail")
def mail(order_id: int, *, copies: int = 1, note: str | None = None) -> None: ...


def test_bind_returns_only_the_given_parameters():
    assert mail.binding.bind({"order_id": 7}) == {"order_id": 7}
    assert mail.binding.bind({"note": None, "order_id": 7}) == {"order_id": 7, "note": None}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, r"payload at \$\.order_id is missing, expected int"),
        (
            {"order_id": 7, "oder": 1},
            "has a key 'oder' that the handler has no parameter for; it has copies, note, order_id",
        ),
        ([1], "must be an object with the handler's parameters as keys, not an array"),
        (None, "not null"),
        ("x", "not a string"),
        (True, "not a boolean"),
        (7, "not a number"),
        ({"order_id": 7, "x" * 10_000: 1}, "has a key 'x{80}'"),
    ],
)
def test_payload_that_does_not_match_the_parameters_is_rejected(payload, says):
    with pytest.raises(BindingError, match=says):
        mail.binding.bind(payload)


def test_handler_without_parameters_accepts_only_an_empty_object():
    @handler("demo:tick")
    def tick() -> None: ...

    assert tick.binding.bind({}) == {}
    with pytest.raises(BindingError, match="it has none"):
        tick.binding.bind({"a": 1})


@pytest.mark.parametrize("document", [None, 5, "x", [1], {}, {"payload": 1}, {"a": 1}])
def test_single_parameter_named_payload_receives_the_whole_document(document):
    @handler("demo:any")
    def whatever(job: Job, payload: Json) -> None: ...

    assert whatever.binding.bind(document) == {"payload": document}
    assert whatever.payload(document) == document


def test_annotation_of_a_payload_parameter_is_checked():
    @handler("demo:ints")
    def ints(payload: list[int]) -> None: ...

    with pytest.raises(BindingError, match=r"payload at \$\[1\] must be int"):
        ints.binding.bind([1, "x"])


def test_handler_with_double_star_accepts_every_key():
    @handler("demo:open")
    def opened(a: int, **rest: Any) -> None: ...

    assert opened.binding.bind({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(BindingError, match=r"\$\.a is missing"):
        opened.binding.bind({"b": 2})


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda job: None, True),
        (lambda job, x: None, True),
        (lambda x, job: None, False),
    ],
)
def test_unannotated_parameter_named_job_receives_the_job_only_in_first_position(function, takes):
    assert handler("demo:x")(function).signature.takes_job is takes


def test_first_parameter_annotated_job_receives_the_job_whatever_its_name():
    def positional(me: Job, /, x: int): ...

    def quoted(me: "Job", x: int): ...  # noqa: UP037

    def other(job: str): ...

    assert handler("demo:x")(positional).signature.takes_job
    assert handler("demo:x")(quoted).signature.takes_job
    assert not handler("demo:x")(other).signature.takes_job
    assert handler("demo:x")(other).binding.bind({"job": "x"}) == {"job": "x"}


def test_parameter_with_an_unresolvable_annotation_is_listed_as_unchecked():
    @handler("demo:unknown")
    def unknown(known: int, odd: Unknown) -> None: ...

    assert unknown.binding.unchecked == ("odd",)
    assert unknown.binding.bind({"known": 1, "odd": "anything"}) == {"known": 1, "odd": "anything"}
    with pytest.raises(BindingError, match="must be int"):
        unknown.binding.bind({"known": "1", "odd": 1})


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
annotations = st.recursive(
    st.sampled_from(
        [
            int,
            str,
            float,
            bool,
            None,
            Any,
            Color,
            Level,
            datetime,
            UUID,
            Decimal,
            Address,
            Customer,
            Options,
            Literal["a", 1],
        ]
    ),
    lambda inner: (
        inner.map(lambda one: list[one])
        | inner.map(lambda one: dict[str, one])
        | inner.map(lambda one: tuple[one, ...])
        | inner.map(lambda one: Optional[one])  # noqa: UP045
    ),
    max_leaves=4,
)


@given(annotations, documents)
def test_every_document_is_bound_or_rejected_with_a_path(annotation, document):
    try:
        one(annotation, document)
    except BindingError as problem:
        assert problem.path.startswith("$.x")


@handler("sig:exact")
def exact(n: int, text: str = "", yes: bool = False) -> None: ...


@handler("sig:whole")
def whole_text(payload: str) -> None: ...


@handler("sig:loose")
def loose(n: int, share: float = 0.0, more: Any = None) -> None: ...


READ = [
    '{"n": 1, "text": "a", "yes": true}',
    '{"yes": true, "text": "a", "n": 1}',
    '{"n": 1}',
    '{"n": 18446744073709551615, "text": "12345678901234567890123", "yes": false}',
    '{"n": 18446744073709551616, "text": "", "yes": false}',
    '{"n": -9223372036854775809, "text": "", "yes": false}',
    '{"n": 1.0, "text": "a", "yes": true}',
    '{"n": true, "text": "a", "yes": true}',
    '{"n": 1, "text": 2, "yes": true}',
    '{"n": 1, "text": null, "yes": true}',
    '{"n": 1, "text": "a", "yes": true, "other": 1}',
    '{"n": 1, "n": 2, "text": "a", "yes": true}',
    '{"n": 1, "text": "\\ud800", "yes": true}',
    '{"n": 1, "share": 123456789012345678901234567890, "more": [123456789012345678901234567890]}',
    '{"n": NaN, "text": "a", "yes": true}',
    '{"payload": "a"}',
    '"a"',
    "[1]",
    "null",
    "",
    "[" * 5000 + "]" * 5000,
]


@pytest.mark.parametrize("kind", [exact, whole_text, loose], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("text", READ, ids=lambda text: text[:40])
def test_reading_a_payload_directly_equals_decoding_and_binding_it(kind, text: str):
    def outcome(step):
        try:
            found = step()
        except PayloadError as problem:
            return type(problem), str(problem)
        return found, [type(value) for value in found.values()]

    assert outcome(lambda: kind.binding.read(text)) == outcome(lambda: kind.binding.bind(decode_payload(text)))


@given(st.integers(), st.text(), st.booleans(), st.permutations(["n", "text", "yes"]))
def test_reading_directly_equals_decoding_and_binding_for_random_values(n: int, text: str, yes: bool, order: list[str]):
    values = {"n": n, "text": text, "yes": yes}
    document = json.dumps({name: values[name] for name in order})

    def outcome(step):
        try:
            return step()
        except PayloadError as problem:
            return str(problem)

    assert outcome(lambda: exact.binding.read(document)) == outcome(
        lambda: exact.binding.bind(decode_payload(document))
    )
