"""A value arrives exactly as it was enqueued, or enqueue rejects it.

Tested with generated annotations and values, for single jobs, bulk enqueue and enqueue by name.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Unpack,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from jobherd import BindingError, PayloadError, handler
from jobherd.handlers._define import binding
from jobherd.handlers._enqueue.bulk import one_by_name
from jobherd.handlers._values.payload import decode_payload

K = TypeVar("K")
V = TypeVar("V")


class Color(enum.Enum):
    RED = "red"
    DAY = "2030-01-31"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclass
class Page(Generic[V]):
    items: list[V]
    first: V | None = None


@dataclass
class Both(Generic[K, V]):
    one: K
    pages: dict[str, Page[V]] = field(default_factory=dict)


@dataclass
class Swapped(Both[V, K], Generic[K, V]):
    more: K | None = None


class Made(NamedTuple):
    """An annotation, a strategy for its values, and whether all of these values must be accepted."""

    annotation: Any
    values: Any
    sure: bool = True


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(
    ["2030-01-31", "12:00", "12.50", "red", "1"]
)
zones = st.sampled_from(
    [UTC, timezone(timedelta(hours=-5, minutes=-30)), timezone(timedelta(hours=5, seconds=7, microseconds=1))]
)
SCALARS = [
    Made(int, st.integers()),
    Made(float, st.floats(allow_nan=False, allow_infinity=False)),
    Made(str, texts),
    Made(bool, st.booleans()),
    Made(None, st.none()),
    Made(datetime, st.datetimes(timezones=zones).map(lambda one: one.replace(fold=0))),
    Made(date, st.dates()),
    Made(time, st.times().map(lambda one: one.replace(fold=0))),  # == ignores fold
    Made(UUID, st.uuids() | st.just(UUID(int=7))),
    Made(Decimal, st.decimals(allow_nan=False, allow_infinity=False) | st.just(Decimal(20300131))),
    Made(Color, st.sampled_from(Color)),
    Made(Level, st.sampled_from(Level)),
    Made(Word, st.sampled_from(Word)),
    Made(Bits, st.sampled_from([Bits.A, Bits.A | Bits.B])),
    Made(Literal["a", 1, True, Color.RED], st.sampled_from(["a", 1, True, Color.RED])),
    Made(NewType("UserId", int), st.integers()),
    Made(Annotated[int, "positive"], st.integers()),
    Made(Annotated[int, pydantic.Field(ge=0)], st.integers(0, 10)),
]
names = st.sampled_from(["id", "name", "of", "kind"])
keys = st.text("ab 1", min_size=0, max_size=3)


def objects(make: Any, parts: list[tuple[str, Made]]) -> Any:
    return st.builds(make, **{name: part.values for name, part in parts})


@st.composite
def records(draw, inner):
    """Generate a class with 1 to 3 fields from any supported library, with random dataclass features."""
    parts = [(name, draw(inner)) for name in sorted(draw(st.sets(names, min_size=1, max_size=3)))]
    sure = all(part.sure for _, part in parts)
    hints = {name: part.annotation for name, part in parts}
    match draw(
        st.sampled_from(["dataclass", "inherited", "generic", "typed", "named", "pydantic", "msgspec", "attrs"])
    ):
        case "dataclass" | "inherited" as how:
            given = {one: draw(st.booleans()) for one in ("frozen", "kw_only", "slots")}
            last, part = parts[-1]
            late = draw(st.booleans())
            fields = [(name, hint) for name, hint in hints.items() if name != last]
            filled = field(default=None, init=False) if late else field(default_factory=list)
            base = dataclasses.make_dataclass("Base", fields, **given)
            kind = dataclasses.make_dataclass("Derived", [(last, part.annotation, filled)], bases=(base,), **given)
            if how == "dataclass":
                kind = dataclasses.make_dataclass("Plain", [*fields, (last, part.annotation, filled)], **given)
            if not late:
                return Made(kind, objects(kind, parts), sure)

            def make(**values):
                made = kind(**{name: value for name, value in values.items() if name != last})
                object.__setattr__(made, last, values[last])
                return made

            return Made(kind, objects(make, parts), sure)
        case "generic":
            one, other = parts[0][1], parts[-1][1]
            pages = st.builds(Page, st.lists(other.values, max_size=2), st.none() | other.values)
            optional = other.annotation is None or other.sure
            both = {"one": one.values, "pages": st.dictionaries(keys, pages, max_size=1)}
            if draw(st.booleans()):
                return Made(Both[one.annotation, other.annotation], st.builds(Both, **both), sure and optional)
            swapped = st.builds(Swapped, **both, more=st.none() | other.values)
            return Made(Swapped[other.annotation, one.annotation], swapped, sure and optional)
        case "typed":
            kind = typing_extensions.TypedDict("Typed", {name: NotRequired[hint] for name, hint in hints.items()})
            some = st.fixed_dictionaries({}, optional={name: part.values for name, part in parts})
            return Made(kind, some.map(lambda one: {name: one[name] for name in hints if name in one}), sure)
        case "named":
            kind = NamedTuple("Named", list(hints.items()))
            return Made(kind, objects(kind, parts), sure)
        case "pydantic":
            kind = pydantic.create_model("Model", **{name: (hint, ...) for name, hint in hints.items()})
            return Made(kind, objects(kind.model_construct, parts), sure=False)
        case "msgspec":
            kind = msgspec.defstruct("Struct", list(hints.items()))
            return Made(kind, objects(kind, parts), sure=False)
    kind = attrs.make_class("Attrs", {name: attrs.field(type=hint) for name, hint in hints.items()})
    return Made(kind, objects(kind, parts), sure)


@st.composite
def unions(draw, inner):
    parts = draw(st.lists(inner, min_size=2, max_size=3))
    return Made(
        typing.Union[tuple(part.annotation for part in parts)], st.one_of(*(part.values for part in parts)), sure=False
    )


def grown(inner):
    return (
        inner.map(lambda one: Made(list[one.annotation], st.lists(one.values, max_size=2), one.sure))
        | inner.map(lambda one: Made(Sequence[one.annotation], st.lists(one.values, max_size=2), one.sure))
        | inner.map(lambda one: Made(tuple[one.annotation, ...], st.lists(one.values, max_size=2).map(tuple), one.sure))
        | st.tuples(inner, inner).map(
            lambda two: Made(
                tuple[two[0].annotation, two[1].annotation],
                st.tuples(two[0].values, two[1].values),
                two[0].sure and two[1].sure,
            )
        )
        | inner.map(
            lambda one: Made(dict[str, one.annotation], st.dictionaries(keys, one.values, max_size=2), one.sure)
        )
        | inner.map(
            lambda one: Made(Mapping[str, one.annotation], st.dictionaries(keys, one.values, max_size=2), one.sure)
        )
        | inner.map(lambda one: Made(Optional[one.annotation], st.none() | one.values, one.sure))  # noqa: UP045
        | unions(inner)
        | records(inner)
    )


annotations = st.recursive(st.sampled_from(SCALARS), grown, max_leaves=5)


def taker(annotation: Any) -> Any:
    def take(x): ...

    take.__annotations__ = {"x": annotation}
    return handler("demo:take")(take)


ZONE = re.compile(r", tzinfo=[\w.]+(\([^()]*(\([^()]*\))?[^()]*\))?")


def assert_arrived(arrived: object, value: object) -> None:
    # The types must be equal at every level, except the class of the time zone.
    assert ZONE.sub("", repr(arrived)) == ZONE.sub("", repr(value))
    assert arrived == value


@given(annotations, st.data())
def test_value_arrives_exactly_as_enqueued_or_is_rejected(made, data):
    value = data.draw(made.values)
    take = taker(made.annotation)
    try:
        [text] = take._one((), {"x": value}).texts
    except PayloadError as problem:
        assert problem.path.startswith("$.x")
        assert not made.sure, problem
        with pytest.raises(PayloadError):
            list(take._many([{"x": value}]))
        return
    [[many]] = [chunk.texts for chunk in take._many([{"x": value}])]
    [named] = one_by_name("demo:take", {"x": value}, {}).texts
    assert text == many == named
    assert_arrived(take.binding.bind(decode_payload(text))["x"], value)
    assert take._one((), {"x": value}).texts == [chunk.texts[0] for chunk in take._many([take.payload(x=value)])]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (str | date, "2030-01-31", "would arrive as date, not as str"),
        (str | UUID, str(UUID(int=7)), "would arrive as UUID, not as str"),
        (Color | str, "red", "would arrive as Color, not as str"),
        (date | Decimal, Decimal(20300131), "would arrive as date, not as Decimal"),
        (list[int] | tuple[int, ...], (1, 2), "would arrive as list, not as tuple"),
        (Page[int] | Both[int, int], Both([]), "would not arrive|would arrive|lacks|must be"),
        (int | Bits, Bits.A, "would arrive as int, not as Bits"),
        (dict[str, list[int]] | Page[int], {"items": [1]}, "would arrive as Page, not as dict"),
    ],
)
def test_value_that_a_union_would_convert_to_another_member_is_rejected(annotation, value, says):
    with pytest.raises(BindingError, match=says):
        taker(annotation).payload(x=value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime | date, date(2030, 1, 31)),
        (date | datetime, datetime(2030, 1, 31, tzinfo=UTC)),
        (str | date, date(2030, 1, 31)),
        (dict[str, Any] | Page[int], Page([1])),
        (Page[Page[int]], Page([Page([1])])),
        (float | None, 7),
    ],
)
def test_value_that_a_union_can_distinguish_arrives(annotation, value):
    take = taker(annotation)
    assert take.binding.bind(take.payload(x=value))["x"] == value


def test_union_members_are_tried_in_their_declared_order():
    assert taker(list[Level | Literal[1]]).binding.bind({"x": [1]})["x"] == [Level.LOW]
    # typing calls the two annotations equal
    assert type(taker(list[Literal[1] | Level]).binding.bind({"x": [1]})["x"][0]) is int


@dataclass
class Scaled:
    n: int
    scale: InitVar[int] = 2

    def __post_init__(self, scale: int) -> None:
        self.n *= scale


@dataclass
class Needs:
    n: int
    seed: InitVar[int]


@dataclass
class Twin:
    n: int


@dataclass
class Base:
    n: int


@dataclass
class Sub(Base):
    pass


@dataclass(eq=False)
class Unequal:
    n: int


@dataclass
class Unset:
    n: int
    later: int = field(init=False)


def test_dataclass_that_does_not_survive_its_own_conversion_is_rejected():
    with pytest.raises(BindingError, match=r"\$\.x\.n would not arrive unchanged"):
        taker(Scaled).payload(x=Scaled(3))
    with pytest.raises(BindingError, match="lacks the field 'seed' of Needs, an InitVar"):
        taker(Needs).payload(x=Needs(1, 2))
    assert taker(Needs).binding.bind({"x": {"n": 1, "seed": 2}})["x"] == Needs(1, 2)
    with pytest.raises(BindingError, match="would arrive as Base, not as Twin"):
        taker(Base).payload(x=Twin(1))
    with pytest.raises(BindingError, match="would arrive as Base, not as Sub"):
        taker(list[Base]).payload(x=[Base(1), Sub(1)])


def test_model_that_would_drop_a_field_of_a_dataclass_is_rejected():
    model = pydantic.create_model("Model", unset=(Unset, ...))
    value = Unset(1)
    value.later = 5  # pydantic drops fields that __init__ does not accept
    with pytest.raises(BindingError, match=r"\$\.x\.unset\.later would"):
        taker(model).payload(x=model.model_construct(unset=value))


def test_dataclass_without_equality_or_with_an_unset_field_is_accepted():
    assert taker(Unequal).payload(x=Unequal(1)) == {"x": {"n": 1}}
    assert taker(Unset).payload(x=Unset(1)) == {"x": {"n": 1}}


def test_repeated_hour_of_a_clock_change_arrives_unchanged():
    moment = datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    take = taker(Page[datetime])
    assert take.binding.bind(take.payload(x=Page([moment])))["x"].items[0].astimezone(UTC) == moment.astimezone(UTC)


class MoreWork(TypedDict, total=False):
    width: Required[int]
    on: date


def test_double_star_arguments_are_checked_and_converted():
    @handler("demo:more")
    def more(a: int, **rest: Unpack[MoreWork]) -> None: ...

    @handler("demo:dates")
    def dates(**days: date) -> None: ...

    assert more.binding.bind(more.payload(a=1, width=2, on=date(2030, 1, 31))) == {
        "a": 1,
        "width": 2,
        "on": date(2030, 1, 31),
    }
    assert dates.binding.bind(dates.payload(first=date(2030, 1, 31))) == {"first": date(2030, 1, 31)}
    for payload, says in [
        ({"a": 1}, r"\$\.width is missing, expected"),
        ({"a": 1, "width": "2"}, r"\$\.width must be int"),
        ({"a": 1, "width": 2, "x": 1}, "has a key 'x'"),
    ]:
        with pytest.raises(BindingError, match=says):
            more.binding.bind(payload)
    with pytest.raises(BindingError, match=r"\$\.first must be a date"):
        dates.binding.bind({"first": "soon"})


class Parcel(TypedDict):
    page: Page[int]
    to: str | date


def test_typed_dict_with_keys_in_another_order_arrives():
    parcel = {"to": date(2030, 1, 31), "page": Page([1])}
    take = taker(Parcel)
    assert take.binding.bind(take.payload(x=parcel))["x"] == parcel


class Point(NamedTuple):
    x: int
    y: int = 0


def test_enqueue_many_accepts_the_values_that_enqueue_accepts():
    def texts_of(take, calls):
        return [text for chunk in take._many(calls) for text in chunk.texts]

    assert texts_of(taker(Page[int]), [Page([1]), {"x": Page([2])}, (Page([3]),)]) == [
        f'{{"x":{{"items":[{n}],"first":null}}}}' for n in (1, 2, 3)
    ]
    assert texts_of(taker(Point), [Point(1)]) == ['{"x":{"x":1,"y":0}}']
    assert texts_of(taker(int), [1, (2,)]) == ['{"x":1}', '{"x":2}']
    with pytest.raises(BindingError, match="index 1: payload at") as caught:
        texts_of(taker(Page[int]), [Page([1]), Page(["a"])])
    assert caught.value.index == 1
    with pytest.raises(TypeError, match="not one str"):
        texts_of(taker(str), "abc")
    with pytest.raises(TypeError, match="not one dict"):
        texts_of(taker(str), {"x": "a"})


KEYS = [
    Made(int, st.integers()),
    Made(UUID, st.uuids()),
    Made(date, st.dates()),
    Made(datetime, st.datetimes(timezones=zones).map(lambda one: one.replace(fold=0))),
    Made(Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    Made(Color, st.sampled_from(Color)),
    Made(Level, st.sampled_from(Level)),
    Made(Literal["a", "b"], st.sampled_from("ab")),
    Made(NewType("UserId", int), st.integers()),
    Made(date | UUID, st.dates() | st.uuids()),
    Made(str | date, texts | st.dates(), sure=False),
]
members = st.sampled_from([one for one in SCALARS if one.annotation is not Literal["a", 1, True, Color.RED]])
SETS = (
    members.map(lambda one: Made(set[one.annotation], st.sets(one.values, max_size=3), one.sure))
    | members.map(lambda one: Made(frozenset[one.annotation], st.frozensets(one.values, max_size=3), one.sure))
    | st.tuples(st.sampled_from(KEYS), st.sampled_from(SCALARS)).map(
        lambda two: Made(
            dict[two[0].annotation, two[1].annotation],
            st.dictionaries(two[0].values, two[1].values, max_size=3),
            sure=two[0].sure and two[0].annotation is not Decimal,  # 1 and 1.0 are equal keys with different texts
        )
    )
)
WIDE = (
    SETS
    | SETS.map(lambda one: Made(list[one.annotation], st.lists(one.values, max_size=2), one.sure))
    | SETS.map(lambda one: Made(dict[int, one.annotation], st.dictionaries(st.integers(), one.values), one.sure))
    | SETS.map(lambda one: Made(Page[one.annotation], st.builds(Page, st.lists(one.values, max_size=2)), one.sure))
    | SETS.map(lambda one: Made(Optional[one.annotation], st.none() | one.values, one.sure))  # noqa: UP045
)


@given(WIDE, st.data())
def test_sets_and_non_text_keys_arrive_or_are_rejected(made, data):
    value = data.draw(made.values)
    take = taker(made.annotation)
    assert take.problems() == []
    try:
        [text] = take._one((), {"x": value}).texts
    except PayloadError as problem:
        assert problem.path.startswith("$.x")
        assert not made.sure, problem
        return
    [[many]] = [chunk.texts for chunk in take._many([{"x": value}])]
    arrived = take.binding.bind(decode_payload(text))["x"]
    assert text == many
    assert type(arrived) is type(value)
    assert arrived == value


@pytest.mark.parametrize(
    "annotation",
    [dict[float, str], dict[bool, str], dict[tuple[int, int], str], dict[int | str, str], dict[None, str]]
    + [set[list[int]], set[dict[str, int]], frozenset[Page[int]], set[Sequence[int]], set[MoreWork]],
)
def test_check_reports_annotations_that_no_value_can_fit(annotation):
    [problem] = taker(list[annotation]).problems()
    assert problem.startswith("parameter 'x' is annotated ")
    assert "which Jobherd cannot convert from JSON" in problem


@dataclass
class Tags:
    names: object


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (list[str], {"a"}, r"payload at \$\.x is a set and would arrive as a list: annotate it as a set"),
        (Any, {"a"}, r"payload at \$\.x is a set"),
        (Any, [{"a"}], r"payload at \$\.x\[0\] is a set"),
        (Any, Tags({"a"}), r"payload at \$\.x\.names is a set"),
        (Any, Tags([{1: 2}]), r"payload at \$\.x\.names\[0\] has a key of type int that would arrive as str"),
        (dict[str, int], {1: 2}, r"payload at \$\.x has a key of type int that would arrive as str"),
        (dict[int, int], {1: 2, "1": 3}, r"payload at \$\.x would not arrive unchanged"),
        (dict[int, int], {1.0: 2}, "keys of JSON objects are strings"),
        (dict[int, int], {"01": 2}, r"payload at \$\.x\[\"01\"\] has a key that must be int"),
        (set[date], {datetime(2030, 1, 31, tzinfo=UTC)}, r"payload at \$\.x"),
    ],
)
def test_set_for_another_annotation_is_rejected_even_if_another_parameter_takes_sets(annotation, value, says):
    def take(x, own): ...

    take.__annotations__ = {"x": annotation, "own": set[int]}
    own = handler("demo:take")(take)
    with pytest.raises(PayloadError, match=says):
        own.payload(x=value, own={1})
    with pytest.raises(PayloadError):
        taker(annotation).payload(x=value)


def test_members_of_a_set_are_sorted_in_the_payload():
    assert taker(set[str]).payload(x={"c", "a", "b"}) == {"x": ["a", "b", "c"]}
    assert taker(set[str]).payload(x=["b", "a"]) == {"x": ["b", "a"]}  # a list is kept as given


def test_type_alias_in_a_union_is_distinguished_like_its_type():
    text = typing_extensions.TypeAliasType("text", str)
    with pytest.raises(BindingError, match="would arrive as date, not as str"):
        taker(text | date).payload(x="2030-01-31")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Page[int], Page([1])),
        (list[str | date], [date(2030, 1, 31)]),
        (str | date, date(2030, 1, 31)),
        (Level | int, 7),
    ],
)
def test_value_is_compared_once_even_if_its_payload_was_created_before(annotation, value, monkeypatch):
    def take(payload): ...

    take.__annotations__ = {"payload": annotation}
    whole = handler("demo:take")(take)
    seen = []
    monkeypatch.setattr(binding, "compare", lambda *_: seen.append(1))
    for make in (
        lambda: whole._one((), {"payload": value}),
        lambda: list(whole._many([value])),
        lambda: list(whole._many([whole.payload(value)])),
        lambda: list(taker(annotation)._many([taker(annotation).payload(x=value)])),
    ):
        seen.clear()
        make()
        assert len(seen) == 1
