"""Every write to a row of `running` is under the fence of its claim, or is by somebody who has made sure that nobody works on it: read off the statements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobherd import sql

FOLDER = Path(sql.__file__).parent
WRITE = re.compile(
    r"(?P<what>UPDATE|DELETE FROM|TRUNCATE|INSERT INTO|MERGE INTO)\s+(?:ONLY\s+)?(?:jobherd\.)?running\b(?P<how>[^;]*?)(?=\bRETURNING\b|\n\s*\)|;|\Z)"
)
FENCED = re.compile(r"(?:running\.)?child = %\(child\)s AND (?:running\.)?token = %\(token\)s")
BEGINS = {"claim/claim_job", "claim/claim_jobs", "remote/claim_slots"}
"""They make the row, under a token of its own."""
LOCKED = {
    "remote/settle_claims": (
        "WHERE ctid = ANY (ARRAY(SELECT place FROM held))",
        "WHERE child = c.child AND token = c.token AND cardinality(jobs) = c.size FOR UPDATE",
    )
}
"""They write rows that they have locked under the fence, many at once."""
RELEASES = {
    # its children are dismissed and reaped, and their rows go in the same statement
    "recover/unregister_supervisor": "JOIN gone g ON g.id = r.child",
    # its process is reaped and its session ended before this is sent
    "recover/requeue_child": "JOIN gone ON gone.id = r.child",
    # rows that were locked, of supervisors whose lease has lapsed
    "recover/reclaim_supervisors": "JOIN gone g ON g.id = r.child",
    # the same, of children that are not registered
    "recover/requeue_orphans": "NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = r.child)",
    # by the child itself: the claims of which it has not received the answer
    "recover/requeue_unacknowledged": "WHERE r.child = %(child)s AND r.token <> ALL (%(heard)s::bigint[])",
    # by the gateway that has just resumed the session: jobs that its worker has not received
    "remote/release_unheld": "WHERE r.child = %(child)s AND NOT EXISTS",
    # jobs of one claim
    "recover/requeue_rest": "WHERE child = %(child)s AND token = %(token)s FOR UPDATE",
}
"""They choose the claims that the function `requeue` ends, and these are the claims that they may choose."""
PAIR = "r.child = rest.child AND r.token = rest.token"


def writes(text: str) -> list[tuple[str, str]]:
    """What is done to `running` in a text, and under which condition."""
    plain = re.sub(r"--.*", "", text)
    return [(found["what"], " ".join(found["how"].split())) for found in WRITE.finditer(plain)]


STATEMENTS = {
    f"{path.parent.name}/{path.stem}": found
    for path in sorted((FOLDER / "queries").rglob("*.sql"))
    if (found := writes(path.read_text()))
}


SETTLE = {"settle/settle_completed", "settle/settle_members", "settle/settle_jobs"}


def test_all_the_statements_that_write_it_are_known_here():
    assert set(STATEMENTS) == {*BEGINS, *LOCKED, "claim/claim_more", "steps/begin_count", *SETTLE}
    assert len(STATEMENTS["settle/settle_jobs"]) == 2


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_fenced(name):
    for what, how in STATEMENTS[name]:
        if name in BEGINS:
            assert what == "INSERT INTO"
            assert how.startswith("(child, token,")
        elif name in LOCKED:
            write, lock = LOCKED[name]
            assert (what, how) == ("DELETE FROM", write)
            assert lock in " ".join((FOLDER / f"queries/{name}.sql").read_text().split())
        else:
            assert what in {"UPDATE", "DELETE FROM"}
            assert FENCED.search(how), how


def test_a_release_names_claims_that_it_may_end():
    found = {
        f"{path.parent.name}/{path.stem}": " ".join(path.read_text().split())
        for path in sorted((FOLDER / "queries").rglob("*.sql"))
        if "jobherd.requeue(" in path.read_text()
    }
    assert found.keys() == RELEASES.keys()
    for name, condition in RELEASES.items():
        assert condition in found[name], name


def test_of_the_functions_the_claim_begins_it_and_requeue_ends_it_by_its_token():
    begun, kept, gone = [one for file in sorted((FOLDER / "schema").glob("*.sql")) for one in writes(file.read_text())]
    assert [what for what, _ in (begun, kept, gone)] == ["INSERT INTO", "UPDATE", "DELETE FROM"]
    assert PAIR in kept[1]
    assert PAIR in gone[1]


def test_no_module_writes_it_by_itself():
    root = FOLDER.parent
    for folder in ("supervisor", "workers", "handlers"):
        for path in (root / folder).rglob("*.py"):
            assert not writes(path.read_text()), path


def test_the_reading_sees_a_statement_without_a_fence():
    assert not FENCED.search(
        writes("WITH a AS (\n    DELETE FROM jobherd.running WHERE child = %(child)s\n    RETURNING jobs\n)")[0][1]
    )
