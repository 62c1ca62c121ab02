"""Tests that the table of promises is complete and correct."""

from __future__ import annotations

import pytest

from tests.docs.pages import prose
from tests.promises import __main__ as table
from tests.promises.rows import ROOT, carried, rows

LENGTHS = {"A": 51, "B": 60, "C": 43, "D": 40, "E": 26}


def test_table_has_every_row_once_and_in_order():
    assert [row.id for row in rows()] == [
        f"{document}{number}" for document, count in LENGTHS.items() for number in range(1, count + 1)
    ]


def test_tests_carry_only_existing_rows():
    assert carried().keys() - {row.id for row in rows()} == set()


def test_last_column_has_only_known_entries():
    assert [(row.id, part) for row in rows() for part in row.ours if not part.startswith(("page ", "instead: "))] == []


@pytest.mark.parametrize(
    ("page", "words"),
    [pytest.param(*each, marks=pytest.mark.promise(row.id), id=row.id) for row in rows() for each in row.pages],
)
def test_page_contains_the_words_of_its_row(page, words):
    assert words in " ".join(prose(ROOT / page).split())


def test_table_shows_the_state_of_each_row_after_a_run(tmp_path, capsys):
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
