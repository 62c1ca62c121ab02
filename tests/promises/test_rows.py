"""The table itself: complete, and nothing in it that is not so."""

from __future__ import annotations

import pytest

from tests.docs.pages import prose
from tests.promises import __main__ as table
from tests.promises.rows import ROOT, carried, rows

LENGTHS = {"A": 51, "B": 60, "C": 43, "D": 40, "E": 26}
WIRE = ""
"""All that may be left to the protocol of remote workers."""


def test_every_row_is_there_once_and_in_order():
    assert [row.id for row in rows()] == [
        f"{document}{number}" for document, count in LENGTHS.items() for number in range(1, count + 1)
    ]


def test_what_is_left_to_the_wire_is_agreed_on():
    assert " ".join(row.id for row in rows() if row.wire) == WIRE


def test_what_tests_carry_are_rows():
    assert carried().keys() - {row.id for row in rows()} == set()


def test_the_last_column_says_nothing_else():
    assert [
        (row.id, part)
        for row in rows()
        for part in row.ours
        if part != "wire" and not part.startswith(("page ", "instead: "))
    ] == []


@pytest.mark.parametrize(
    ("page", "words"),
    [pytest.param(*each, marks=pytest.mark.promise(row.id), id=row.id) for row in rows() for each in row.pages],
)
def test_the_page_says_it(page, words):
    assert words in " ".join(prose(ROOT / page).split())


def test_a_run_is_told_row_by_row(tmp_path, capsys):
    noted = tmp_path / "run"
    noted.write_text(
        "A1\ttests/a.py::t[1]\tpassed\nA1\ttests/a.py::t[2]\tpassed\nA2\ttests/a.py::u\tfailed\nA3\ttests/a.py::v\tskipped\n"
    )
    assert table.main([str(noted)]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " kept " in lines["A1"]
    assert lines["A1"].endswith("tests/a.py::t")
    assert " FAILED " in lines["A2"]
    assert " open (skipped) " in lines["A3"]
    assert " open " in lines["A4"]
    assert all(" wire " in lines[row] for row in WIRE.split())
