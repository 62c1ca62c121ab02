"""Redaction of documents and of errors that quote them, also of nested and of unreadable documents."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import handler
from jobherd.handlers._policy.redact import check_redact
from jobherd.workers.dashboard.database import Database
from jobherd.workers.dashboard.redaction import HIDDEN, Redactions, redact, redact_text
from jobherd.workers.run.declaration import kinds_of
from tests.dashboard.support import finish

CARD = {"card": "4111222233334444", "amount": 5}


@pytest.mark.parametrize(
    ("document", "paths", "left"),
    [
        (CARD, ["$.card"], {"card": HIDDEN, "amount": 5}),
        (CARD, [], CARD),
        (CARD, ["$.nothing", "$.amount.deeper", "$[0]"], CARD),
        (
            {"items": [{"code": 1}, {"code": 2, "n": 3}]},
            ["$.items[*].code"],
            {"items": [{"code": HIDDEN}, {"code": HIDDEN, "n": 3}]},
        ),
        ([1, 2, 3], ["$[1]"], [1, HIDDEN, 3]),
        (
            {"a": {"password": "x", "b": [{"password": {"c": 1}}]}},
            ["$..password"],
            {"a": {"password": HIDDEN, "b": [{"password": HIDDEN}]}},
        ),
        ({"password": "x"}, ["$..password"], {"password": HIDDEN}),
        ({"a": 1, "b": [2]}, ["$.*"], {"a": HIDDEN, "b": HIDDEN}),
        ({"a b": 1, "": 2, "$": 3}, ['$["a b"]', "$['']"], {"a b": HIDDEN, "": HIDDEN, "$": 3}),
        ({"card": None}, ["$.card"], {"card": HIDDEN}),
        ("a text", ["$.card"], "a text"),
    ],
)
def test_redact_hides_exactly_the_values_at_the_paths(document, paths, left):
    assert json.loads(redact(json.dumps(document), paths)) == left


@pytest.mark.parametrize("document", ["{", "nonsense 4111", "9" * 5000, "[" * 100_000, '{"card": 4111'])
def test_unreadable_document_is_hidden_completely(document):
    assert json.loads(redact(document, ["$.card"])) == HIDDEN


def test_redacting_none_returns_none():
    assert redact(None, ["$.card"]) is None
    assert redact_text(None, "{}", ["$.card"]) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("card 4111222233334444 is not valid", f"card {HIDDEN} is not valid"),
        ("KeyError: '4111222233334444'", f"KeyError: '{HIDDEN}'"),
        ('{"card":"4111222233334444"}', f'{{"card":"{HIDDEN}"}}'),
        ("amount 5", "amount 5"),
    ],
)
def test_error_does_not_quote_a_redacted_value(text, left):
    assert redact_text(text, json.dumps(CARD), ["$.card"]) == left


def test_error_is_hidden_if_the_payload_is_unreadable():
    assert redact_text("card 4111", "{", ["$.card"]) == HIDDEN


@pytest.mark.parametrize(
    "paths", [["card"], ["$"], ["$.a b"], ["$.a["], ["$[x]"], [""], ["$.card "], ["$..."], ["$.*"] * 101]
)
def test_invalid_redact_paths_are_rejected(paths):
    with pytest.raises(ValueError, match="redact"):
        check_redact(paths)


@pytest.mark.parametrize("paths", ["$.card", 7, [7], None, {"$.card": 1}])
def test_handler_rejects_redact_that_is_not_a_list_of_paths(paths):
    with pytest.raises(TypeError, match="redact"):
        handler("card:charge", redact=paths)(lambda card: None)


def test_redact_paths_of_a_handler_are_stored_and_read_by_the_dashboard(database):
    @handler("card:charge", redact=["$.card", "$.card"])
    def charge(card: str) -> None: ...

    @handler("mail:receipt")
    def receipt() -> None: ...

    from jobherd import sql

    with psycopg.connect(database, autocommit=True) as conn:
        declared = kinds_of({one.kind: one for one in (charge, receipt)})
        conn.execute(sql.load("lease/register_kinds"), declared)
        assert conn.execute(sql.load("lease/register_kinds"), declared).rowcount == 0, (
            "an unchanged declaration must not be written again"
        )
        plain = handler("card:charge")(charge.function)

        async def read():
            at = Database(database)
            try:
                first = await Redactions().read(at)
                conn.execute(sql.load("lease/register_kinds"), kinds_of({plain.kind: plain}))
                return first, await Redactions().read(at)
            finally:
                await at.close()

        assert finish(read()) == ({"card:charge": ("$.card",)}, {})
