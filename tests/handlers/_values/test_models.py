"""Payload types of Pydantic, msgspec and attrs.

Jobherd accepts and checks them, and passes them to the handler as annotated.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from jobherd import BindingError, PayloadError, handler
from jobherd.handlers._load.registry import load
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._values.payload import check_payload, decode_payload
from jobherd.testing import run, run_payload
from tests.support.patience import LIMIT

T = TypeVar("T")
NAIVE = datetime(2030, 1, 31)  # noqa: DTZ001
MOMENT = datetime(2030, 1, 31, 8, tzinfo=UTC)


class Line(pydantic.BaseModel):
    name: str
    count: int = pydantic.Field(default=1, gt=0)


class Order(pydantic.BaseModel):
    id: int
    price: Decimal = Decimal("1.50")
    at: datetime | None = None
    lines: list[Line] = []
    key: UUID = UUID(int=7)
    customer: str = pydantic.Field(default="", alias="theCustomer")


class Box(pydantic.BaseModel, Generic[T]):
    inside: T


@pydantic.dataclasses.dataclass
class Checked:
    n: int
    line: Line | None = None


class Struct(msgspec.Struct):
    id: int
    price: Decimal = Decimal("1.50")
    at: datetime | None = None
    lines: list[Struct] = []


class Silent(msgspec.Struct, eq=False):
    id: int


@attrs.define
class Attrs:
    _id: int
    order: Order
    price: Decimal = Decimal("1.50")
    derived: str = attrs.field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        self.derived = self.derived or f"no {self._id}"


@dataclasses.dataclass
class Holder:
    order: Order
    struct: Struct


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Pet(msgspec.Struct, tag="pet"):
    n: int


class Toy(msgspec.Struct, tag="toy"):
    n: Literal["a"]


TAGGED = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def taker(annotation: Any) -> Any:
    """Return a handler with one parameter that stores its argument in `taker.seen`."""

    def take(x):
        taker.seen = x
        return x

    take.__annotations__ = {"x": annotation}
    return handler("demo:take")(take)


VALUES = [
    (Order, Order(id=7, at=MOMENT, lines=[Line(name="a", count=2)], theCustomer="c")),
    (list[Order], [Order(id=7), Order(id=8)]),
    (Order | None, Order(id=7)),
    (Line | Order, Order(id=7)),
    (dict[str, Order], {"a": Order(id=7)}),
    (Box[int], Box[int](inside=5)),
    (Checked, Checked(5, Line(name="a"))),
    (TAGGED, Dog()),
    (Annotated[int, pydantic.Field(gt=0)], 5),
    (Annotated[int, msgspec.Meta(gt=0)], 5),
    (Struct, Struct(7, at=MOMENT, lines=[Struct(8)])),
    (Silent, Silent(7)),
    (Attrs, Attrs(7, Order(id=7))),
    (Holder, Holder(Order(id=7), Struct(8))),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda one: str(one)[:40])
def test_handler_receives_its_annotated_type_and_its_result_is_serialized(annotation, value):
    ran = run(taker(annotation), x=value)
    assert ran.outcome.label == "ok", ran.outcome
    assert type(taker.seen) is type(value)
    assert taker.seen == value or isinstance(value, Silent)
    assert ran.result == decode_payload(check_payload(value))


@pytest.mark.parametrize(
    ("annotation", "document", "path", "says"),
    [
        (Order, {"id": "secret"}, "$.x.id", "valid integer"),
        (Order, {}, "$.x.id", "Field required"),
        (Order, {"id": 7, "lines": [{"name": "a"}, {"name": "b", "count": 0}]}, "$.x.lines[1].count", "greater than 0"),
        (Order, {"id": 7, "key": "secret"}, "$.x.key", "must be a UUID"),
        (Order, [], "$.x", "should be an object"),
        (Order | None, {"id": "secret"}, "$.x.id", "valid integer"),
        (dict[str, Order], {"a": {"id": "secret"}}, "$.x.a.id", "valid integer"),
        (Box[int], {"inside": "secret"}, "$.x.inside", "valid integer"),
        (Checked, {"n": "secret"}, "$.x.n", "valid integer"),
        (Annotated[int, pydantic.Field(gt=0)], 0, "$.x", "greater than 0"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "$.x", ">= 1"),
        (Struct, {"id": "secret"}, "$.x.id", "Expected `int`"),
        (Struct, {"id": 7, "lines": [{"id": "secret"}]}, "$.x.lines[0].id", "Expected `int`"),
        (Struct, {}, "$.x", "missing required field `id`"),
        (Attrs, {"_id": "secret", "order": {"id": 7}}, "$.x._id", "must be int"),
        (Attrs, {"_id": 7, "order": {"id": "secret"}}, "$.x.order.id", "valid integer"),
        (Attrs, {"_id": 7}, "$.x", "lacks the field 'order' of Attrs"),
        (Holder, {"order": {"id": 7}, "struct": {"id": "secret"}}, "$.x.struct.id", "Expected `int`"),
    ],
)
def test_error_for_an_invalid_model_names_the_path_and_hides_the_value(annotation, document, path, says):
    ran = run_payload(taker(annotation), {"x": document})
    assert isinstance(ran.exception, BindingError)
    assert ran.outcome.code == "PAYLOAD_INVALID"
    assert ran.exception.path == path
    assert says in str(ran.exception)
    assert "secret" not in str(ran.exception)


@pytest.mark.parametrize(
    ("annotation", "document"),
    [(TAGGED, {"kind": "secret"}), (Pet | Toy, {"type": "secret", "n": 1}), (Toy, {"type": "toy", "n": "secret"})],
)
def test_error_hides_a_value_that_the_library_quotes(annotation, document):
    ran = run_payload(taker(annotation), {"x": document})
    assert isinstance(ran.exception, BindingError)
    assert "secret" not in str(ran.exception)


@pytest.mark.parametrize("value", [Order(id=7, at=NAIVE), Struct(7, at=NAIVE), Attrs(7, Order(id=7, at=NAIVE))])
def test_datetime_without_a_time_zone_in_a_model_is_rejected_with_its_path(value):
    with pytest.raises(PayloadError, match="has no time zone") as caught:
        check_payload({"order": [value]})
    assert caught.value.path in {"$.order[0].at", "$.order[0].order.at"}
    assert outcome_of(value).label == "ok"  # results may contain datetimes without a time zone


class Lossy(pydantic.BaseModel):
    secret: pydantic.SecretStr = pydantic.SecretStr("")
    hidden: int = pydantic.Field(default=0, exclude=True)


@attrs.define
class Doubling:
    n: int = attrs.field(converter=lambda n: n * 2)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Lossy, Lossy(secret="hunter2"), "$.x.secret"),
        (list[Lossy], [Lossy(), Lossy(hidden=1)], "$.x[1].hidden"),
        (Doubling, Doubling(1), "$.x.n"),
        (Line, Order(id=7), "$.x.name"),
        (pydantic.BaseModel, Line(name="a"), "$.x"),
    ],
)
def test_model_that_would_not_arrive_unchanged_is_rejected_with_its_path(annotation, value, path):
    with pytest.raises(BindingError) as caught:
        taker(annotation).payload(x=value)
    assert caught.value.path == path
    assert "hunter2" not in str(caught.value)


SOURCE = """
from pathlib import Path
from dataclasses import dataclass
from jobherd import handler

class Opaque: ...

@dataclass
class Outer:
    inner: Opaque

@handler("demo:path")
def path(x: Path, y: "list[Outer]"): ...
@handler("demo:fine")
def fine(x: int): ...
"""


def test_annotation_that_cannot_be_converted_is_reported_on_load(tmp_path):
    (tmp_path / "jobs.py").write_text(SOURCE)
    found = [str(problem) for problem in load([tmp_path]).problems]
    assert [text.partition(", which")[0].partition(": ")[2] for text in found] == [
        "demo:path: parameter 'x' is annotated Path",
        "demo:path: parameter 'y' is annotated Opaque",
    ]
    assert all("jobs.py:12: " in text for text in found)


def test_enqueueing_a_dataclass_imports_no_model_library():
    code = (
        "import sys; from jobherd import handler, check_payload\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    n: int\n"
        "@handler('a:b')\ndef b(a: A): ...\n"
        "b.payload(a=A(1)); print([name for name in ('pydantic', 'msgspec', 'attrs', 'attr') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    assert ran.stdout == "[]\n"
