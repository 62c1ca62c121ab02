from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import pathlib
import subprocess
import sys
import uuid
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd import PayloadError, ResultError, check_payload
from jobherd.handlers._values.payload import decode_payload, encode_result, max_payload
from tests.support.patience import LIMIT


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):  # noqa: SLOT000
    pass


class Bad(enum.Enum):
    NAN = math.nan
    BYTES = b"x"


@dataclasses.dataclass
class Point:
    x: int
    _hidden: int = 2


@dataclasses.dataclass
class Line:
    points: list[Point]
    color: Color = Color.RED


@dataclasses.dataclass
class Unreadable:
    x: int

    def __getattribute__(self, name):
        if name == "x":
            raise RuntimeError("secret")
        return object.__getattribute__(self, name)


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


def deep(levels: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(levels):
        value = [value]
    return value


def holding_itself() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**999), 10**999)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**60, 2**90)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)


@given(documents)
def test_valid_document_survives_the_round_trip(document):
    text = check_payload(document)
    assert decode_payload(text) == document
    assert decode_payload(text.encode()) == document


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**990, 10**1010)
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.datetimes()
    | st.uuids()
    | st.decimals(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner)
        | st.tuples(inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(anything)
def test_any_value_is_stored_as_valid_json_or_rejected_with_a_path(value):
    try:
        text = check_payload(value)
    except PayloadError as problem:
        assert problem.path.startswith("$")
        assert str(problem).encode()
        return
    assert "\0" not in text
    assert "\\u0000" not in text.replace("\\\\", "")
    assert "NaN" not in json.dumps(json.loads(text))
    text.encode()


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"a": "x\0y"}, "$.a", "NUL"),
        ({"items": [0, 1, 2, {"name": "\0"}]}, "$.items[3].name", "NUL"),
        ({"a\0b": 1}, "$", "NUL"),
        ({"a": "\ud800"}, "$.a", "lone surrogate"),
        ({"\udfff": 1}, "$", "lone surrogate"),
        ({"a": math.nan}, "$.a", "nan"),
        ({"a": [math.inf]}, "$.a[0]", "inf"),
        ({"a": (-math.inf,)}, "$.a[0]", "-inf"),
        (math.nan, "$", "nan"),
        ({"a": None, "b": math.nan}, "$.b", "nan"),
        ({"a": Bad.NAN}, "$.a", "nan"),
        ({"a": Bad.BYTES}, "$.a", "bytes"),
        ({"a": 10**1000}, "$.a", "1,000 digits"),
        ({"a": -(10**1000)}, "$.a", "1,000 digits"),
        ({"a": 10**5000}, "$.a", "1,000 digits"),
        ({1: 2}, "$", "str(key)"),
        ({"a": {None: 2}}, "$.a", "NoneType"),
        ({"a": {True: 2}}, "$.a", "bool"),
        ({"a": b"x"}, "$.a", "base64"),
        ({"a": {1, 2}}, "$.a", "sorted(value)"),
        ({"a": frozenset()}, "$.a", "sorted(value)"),
        ({"a": pathlib.Path("/x")}, "$.a", "str(value)"),
        ({"a": timedelta(1)}, "$.a", "total_seconds()"),
        ({"a": datetime(2030, 1, 31)}, "$.a", "has no time zone"),  # noqa: DTZ001
        ({"a": Unreadable(1)}, "$.a", "whose fields cannot be read: RuntimeError"),
        ({"a": 1j}, "$.a", "value.real"),
        ({"a": object()}, "$.a", "object"),
        ({"a": ValueError("x")}, "$.a", "raise it"),
        ({"a": Point}, "$.a", "type"),
        ({"a": (n for n in range(3))}, "$.a", "list(value)"),
        ({"a": Decimal("NaN")}, "$.a", "Decimal"),
        ({"a": [Point(x=math.nan)]}, "$.a[0].x", "nan"),
        ({"with space": [math.nan]}, '$["with space"][0]', "nan"),
        ({"": math.nan}, '$[""]', "nan"),
        ({"<script>\n": math.nan}, '$["<script>\\n"]', "nan"),
    ],
)
def test_error_for_an_unserializable_value_names_its_path_and_the_fix(value, path, says):
    with pytest.raises(PayloadError) as caught:
        check_payload(value)
    assert caught.value.path == path
    assert path in str(caught.value)
    assert says in str(caught.value)
    assert str(caught.value).startswith(("payload at ", "a key of the payload at "))


def test_payload_error_never_shows_values():
    with pytest.raises(PayloadError) as caught:
        check_payload({"password": "hunter2", "other": ["hunter2\0"]})
    assert "hunter2" not in str(caught.value)


def test_payload_may_have_100_levels_and_not_more():
    assert decode_payload(check_payload(deep(100))) == deep(100)
    for levels in (101, 254, 255, 900, 5000, 100_000):
        with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
            check_payload(deep(levels))
    wide = [[] for _ in range(500)]
    assert check_payload(wide).count("[") == 501


def test_cyclic_document_is_rejected():
    with pytest.raises(PayloadError, match="contains itself"):
        check_payload(holding_itself())
    loop: dict[str, object] = {}
    loop["a"] = loop
    with pytest.raises(PayloadError, match="contains itself"):
        check_payload(loop)


def test_check_payload_near_the_recursion_limit_raises_and_does_not_crash():
    def at_the_edge():
        try:
            at_the_edge()
        except RecursionError:
            try:
                check_payload({"a": deep(90, leaf=2**70)})
            except (PayloadError, RecursionError):
                pass

    at_the_edge()
    assert check_payload({"a": 1})


def test_integers_are_exact_up_to_1000_digits():
    for number in (2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**1000 - 1, 1 - 10**1000):
        assert decode_payload(check_payload({"n": number, "m": [number]})) == {"n": number, "m": [number]}


def test_payload_limit_is_one_megabyte_of_utf8():
    assert check_payload("x" * 999_998)
    for value in ("x" * 999_999, "é" * 500_000, ["x" * 999_998], {"a": None, "b": "x" * 1_000_000}):
        with pytest.raises(PayloadError, match="more than 1,000,000"):
            check_payload(value)
    assert check_payload("x" * 5_000_000, max_bytes=6_000_000)
    with pytest.raises(PayloadError, match="more than 5"):
        check_payload([1, 2, 3], max_bytes=5)


def test_payload_limit_is_read_from_the_environment():
    code = "from jobherd import check_payload; check_payload('x' * 50)"
    environment = {**os.environ, "JOBHERD_MAX_PAYLOAD": "40"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert "52 bytes, more than 40" in ran.stderr
    environment["JOBHERD_MAX_PAYLOAD"] = "2MB"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert "JOBHERD_MAX_PAYLOAD must be a number of bytes" in ran.stderr
    assert max_payload() == 1_000_000


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2025, 1, 31, 12, 0, tzinfo=UTC), "2025-01-31T12:00:00+00:00"),
        (datetime(2025, 1, 31, 12, 0, 1, 5, UTC), "2025-01-31T12:00:01.000005+00:00"),
        (datetime(2025, 1, 31, tzinfo=timezone(timedelta(hours=5, seconds=7))), "2025-01-31T00:00:00+05:00:07"),
        (date(2025, 1, 31), "2025-01-31"),
        (time(12, 5), "12:05:00"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("12.50"), "12.50"),
        (Color.RED, "red"),
        (Level.LOW, 1),
        (Text("x"), "x"),
        ({Text("k"): 1}, {"k": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ((1, (2,)), [1, [2]]),
        (Pair(1, [2]), {"a": 1, "b": [2]}),
        (Line([Point(1)]), {"points": [{"x": 1, "_hidden": 2}], "color": "red"}),
    ],
)
@pytest.mark.parametrize("beside", [0, None, 2**70], ids=["fast", "with a null", "the long way"])
def test_extended_types_are_serialized_the_same_by_the_fast_and_the_slow_encoder(value, stored, beside):
    assert json.loads(check_payload([value, beside])) == [stored, beside]


@pytest.mark.parametrize(
    "text", ["\\u0000", "a\\u0000b", "null", "[[[[{{{{" * 100, "\u202eevil", "\u200b", "__proto__", "\x01\x1f\x7f"]
)
def test_harmless_texts_that_look_hostile_are_accepted(text):
    assert decode_payload(check_payload({text: text, "constructor": None})) == {text: text, "constructor": None}


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ('{"a":1,"a":2}', {"a": 2}),
        ("12345678901234567890123", 12345678901234567890123),
        ("-9223372036854775809", -9223372036854775809),
        ("18446744073709551616", 2**64),
        ('{"a":18446744073709551616.0}', {"a": 1.8446744073709552e19}),
        ("1e-400", 0.0),
        ("-0", 0),
        ('"\\u0000"', "\0"),
        ('"1234567890123456789012345"', "1234567890123456789012345"),
        (" {} ", {}),
        ("1" + "0" * 999, 10**999),
        ("[" * 900 + "]" * 900, deep(899, [])),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else "",
)
def test_payload_inserted_by_raw_sql_is_read_exactly(text, document):
    assert decode_payload(text) == document
    assert type(decode_payload(text)) is type(document)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 5000,
        "1" * 1_000_000,
        '{"a":' + "9" * 4301 + "}",
        "[" * 2000 + "]" * 2000,
        "[" * 6000 + "]" * 6000,
        "[" * 2000 + "1" * 30 + "]" * 2000,
        '{"a":' * 100_000,
        "1e400",
        "1e131071",
        "[1e400, 12345678901234567890123]",
        "NaN",
        "Infinity",
        "[NaN, 12345678901234567890123]",
        '"\\ud800"',
        '["\\ud800", 12345678901234567890123]',
        '"\ud800"',
        b'"\xff"',
        "",
        "{",
        "{]",
        "undefined",
        "\0",
        "'a'",
        "[1,]",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_payload_that_python_cannot_decode_raises_only_payload_error(text):
    with pytest.raises(PayloadError, match="the payload cannot be read") as caught:
        decode_payload(text)
    assert caught.value.__context__ is None  # json's own error contains the document
    assert len(str(caught.value)) < 300


def test_payload_with_a_million_keys_is_read():
    text = json.dumps({str(n): n for n in range(1_000_000)})
    assert len(decode_payload(text)) == 1_000_000


@given(st.binary() | st.text())
def test_any_bytes_or_text_are_decoded_or_rejected(raw):
    try:
        decode_payload(raw)
    except PayloadError:
        pass


def test_none_result_is_not_stored_and_other_results_are_checked_like_payloads():
    assert encode_result(None) is None
    assert encode_result({"pages": 3}) == '{"pages":3}'
    assert encode_result([]) == "[]"
    with pytest.raises(ResultError, match=r"result at \$\.loss is nan"):
        encode_result({"loss": math.nan})
    with pytest.raises(ResultError, match="result at .* a generator, which JSON"):
        encode_result(n for n in range(3))
