from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import pytest

from jobherd import Job, Unique, handler
from jobherd.handlers._define.field_names import doubtful_redact


@dataclass
class Sms:
    number: str
    text: str = ""


class Row(TypedDict):
    order_id: int


class Pair(NamedTuple):
    order_id: int


COLLECT = Unique(by=("user",), conflict="collect", collect="evnts")


def sync(order_id: int, reason: str = "") -> None: ...


def digest(user: int, events: list[str]) -> None: ...


def charge(card: str, token: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (
            sync,
            {"unique": ("ordr_id",)},
            r"unique names 'ordr_id', and sync has no parameter 'ordr_id'; it has order_id, reason; did you mean 'order_id'\?",
        ),
        (sync, {"unique": Unique(by="$.ordr_id.x")}, r"unique names '\$\.ordr_id\.x', and sync has no parameter"),
        (sync, {"unique": ("order_id", "zzz")}, r"'zzz'; it has order_id, reason$"),
        (sync, {"unique": "$[0]"}, r"sync has no parameter '0'"),
        (sync, {"partition": "$.ordr_id.x"}, "partition names 'ordr_id'"),
        (digest, {"unique": COLLECT}, r"collect names 'evnts', .* did you mean 'events'\?"),
    ],
)
def test_field_that_is_no_parameter_is_rejected_by_the_decorator(function, options, says):
    with pytest.raises(ValueError, match=says):
        handler("sp:a", **options)(function)


def test_field_that_is_no_parameter_is_rejected_by_options():
    plain = handler("sp:a")(sync)
    with pytest.raises(ValueError, match="unique names 'ordr', and sync has no parameter 'ordr'"):
        plain.options(unique=("ordr",))
    with pytest.raises(ValueError, match="collect names 'evnts'"):
        handler("sp:b")(digest).options(unique=COLLECT)
    assert plain.options(unique=("reason", "$.order_id.x"), partition="any text").set_options.is_unique


def test_fields_of_any_name_are_accepted_if_the_payload_may_have_them():
    def rest(order_id: int, **more: object) -> None: ...
    def whole(payload: dict[str, Any]) -> None: ...
    def jobs(jobs: list[Job]) -> None: ...
    def untyped(payloads: list[Any]) -> None: ...
    def rows(payloads: list[Pair]) -> None: ...

    for function in (rest, whole):
        assert handler("sp:a", unique=("other",), partition="other")(function).set_options.is_unique
    for function in (jobs, untyped, rows):
        assert handler("sp:a", unique=("other",), batch=5)(function).set_options.is_unique


@pytest.mark.parametrize(("item", "known"), [(Sms, "number"), (Row, "order_id")])
def test_field_that_the_type_of_a_payload_does_not_have_is_rejected(item, known):
    def send(payloads): ...
    def one(payload): ...

    send.__annotations__["payloads"], one.__annotations__["payload"] = list[item], item
    for function, options in ((send, {"batch": 5}), (one, {})):
        assert handler("sp:a", unique=(known,), **options)(function).set_options.is_unique
        with pytest.raises(ValueError, match=f"{item.__name__} has no field 'nummer'"):
            handler("sp:a", unique=("nummer",), **options)(function)


def test_redacted_path_that_looks_like_a_misspelt_parameter_is_doubtful():
    def rest(card: str, **more: object) -> None: ...

    def doubts(function, *paths):
        return list(doubtful_redact(handler("card:charge", redact=paths)(function)))

    assert doubts(charge, "$.crd.number") == [
        "redact names '$.crd.number' of card:charge, and charge has no parameter 'crd'; did you mean 'card'?"
    ]
    assert doubts(charge, "$.card", "$.cards", "$..crd", "$.*", "$.items[*].code", "$[0]") == []
    assert doubts(rest, "$.crd") == []
