"""Python values as parameters: PostgreSQL returns the values that were sent."""

from __future__ import annotations

import json
import math

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobherd.sql.parameters import as_text
from tests.support.postgres import Cluster

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def back(connection, value, kind):
    result = connection.pgconn.exec_params(b"SELECT to_jsonb($1::" + kind.encode() + b")", [as_text(value)])
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    text = result.get_value(0, 0)
    return None if text is None else json.loads(text)


@pytest.fixture(scope="module")
def connection(cluster: Cluster):
    with cluster.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@given(values=st.lists(st.one_of(st.none(), TEXT), max_size=20))
@settings(max_examples=200, deadline=None)
def test_lists_of_texts_are_returned_unchanged(connection, values):
    assert back(connection, values, "text[]") == values


@given(values=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=20))
@settings(max_examples=100, deadline=None)
def test_lists_of_integers_are_returned_unchanged(connection, values):
    assert back(connection, values, "bigint[]") == values


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), max_size=20))
@settings(max_examples=100, deadline=None)
def test_lists_of_floats_are_returned_unchanged(connection, values):
    assert [float(value) for value in back(connection, values, "double precision[]")] == values


def test_booleans_infinity_and_null_are_returned_unchanged(connection):
    assert back(connection, [True, None, False], "boolean[]") == [True, None, False]
    assert back(connection, True, "boolean") is True
    assert back(connection, [math.inf, 1], "double precision[]") == ["Infinity", 1]
    assert back(connection, None, "text") is None


@pytest.mark.parametrize("value", ["a\0b", ["a", "\0"], "\ud800", ["\udfff"]])
def test_text_with_nul_or_surrogates_is_rejected(value):
    with pytest.raises(ValueError, match=r"NUL|surrogates"):
        as_text(value)
