"""Every write to a row of `running` is under the fence of its claim, or is by somebody who has made sure that nobody works on it: read off the statements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobherd import sql

FOLDER = Path(sql.__file__).parent
WRITE = re.compile(
    r"(?P<what>UPDATE|DELETE FROM|TRUNCATE|INSERT INTO|MERGE INTO)\s+(?:ONLY\s+)?(?:jobherd\.)?running\b(?P<how>[^;]*?)(?=\bRETURNING\b|\n\)|;|\Z)"
)
FENCED = re.compile(r"(?:running\.)?child = %\(child\)s AND (?:running\.)?token = %\(token\)s")
BEGINS = {"claim/claim_job", "claim/claim_jobs"}
"""They make the row, under a token of its own."""
OTHERWISE = {
    # its children are dismissed and reaped, and their rows go in the same statement
    "recover/unregister_supervisor": "USING gone g WHERE r.child = g.id",
    # its process is reaped and its session ended before this is sent
    "recover/requeue_child": "USING gone WHERE r.child = gone.id",
    # rows that were locked, of supervisors whose lease has lapsed
    "recover/reclaim_supervisors": "WHERE r.child = f.child AND r.token = f.token",
    "recover/requeue_orphans": "WHERE r.child = f.child AND r.token = f.token",  # the same, of children that are not registered
    # by the child itself: what it does not know of
    "recover/requeue_unacknowledged": "WHERE r.child = %(child)s AND r.token <> ALL (%(heard)s::bigint[])",
}


def writes(text: str) -> list[tuple[str, str]]:
    """What is done to `running` in a text, and under which condition."""
    plain = re.sub(r"--.*", "", text)
    return [(found["what"], " ".join(found["how"].split())) for found in WRITE.finditer(plain)]


STATEMENTS = {
    f"{path.parent.name}/{path.stem}": found
    for path in sorted((FOLDER / "queries").rglob("*.sql"))
    if (found := writes(path.read_text()))
}


def test_all_the_statements_that_write_it_are_known_here():
    assert set(STATEMENTS) == {
        *BEGINS,
        *OTHERWISE,
        "claim/claim_more",
        "recover/requeue_rest",
        "settle/settle_completed",
        "settle/settle_jobs",
    }
    assert len(STATEMENTS["settle/settle_jobs"]) == 2


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_fenced(name):
    for what, how in STATEMENTS[name]:
        if name in BEGINS:
            assert what == "INSERT INTO"
            assert how.startswith("(child, token,")
        elif name in OTHERWISE:
            assert what == "DELETE FROM"
            assert OTHERWISE[name] in how
        else:
            assert what in {"UPDATE", "DELETE FROM"}
            assert FENCED.search(how), how


def test_of_the_functions_only_the_claim_writes_it():
    assert [what for what, _ in writes((FOLDER / "schema.sql").read_text())] == ["INSERT INTO"]


def test_no_module_writes_it_by_itself():
    root = FOLDER.parent
    for folder in ("supervisor", "workers", "handlers"):
        for path in (root / folder).rglob("*.py"):
            assert not writes(path.read_text()), path


def test_the_reading_sees_a_statement_without_a_fence():
    assert not FENCED.search(
        writes("WITH a AS (\n    DELETE FROM jobherd.running WHERE child = %(child)s\n    RETURNING jobs\n)")[0][1]
    )
