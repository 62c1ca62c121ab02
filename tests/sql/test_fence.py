"""Each write to a row of `running` names the fencing token of its claim, or affects only claims that no worker runs.

The tests read the texts of the statements.
"""

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
"""Statements that insert the row, under a new fencing token."""
LOCKED = {
    "remote/settle_claims": (
        "WHERE ctid = ANY (ARRAY(SELECT place FROM held))",
        "WHERE child = c.child AND token = c.token AND cardinality(jobs) = c.size FOR UPDATE",
    )
}
"""Statements that write many rows at once, which they have locked by token."""
RELEASES = {
    # its child processes are reaped, and the same statement deletes their rows
    "recover/unregister_supervisor": "JOIN gone g ON g.id = r.child",
    # its process is reaped and its session ended before this statement is sent
    "recover/requeue_child": "JOIN gone ON gone.id = r.child",
    # locked rows of supervisors whose lease has expired
    "recover/reclaim_supervisors": "JOIN gone g ON g.id = r.child",
    # locked rows of child processes that are not registered
    "recover/requeue_orphans": "NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = r.child)",
    # run by the worker itself: the claims whose answers it has not received
    "recover/requeue_unacknowledged": "WHERE r.child = %(child)s AND r.token <> ALL (%(known_tokens)s::bigint[])",
    # run by the gateway that has just resumed the session: jobs that its worker has not received
    "remote/release_unheld": "WHERE r.child = %(child)s AND NOT EXISTS",
    # jobs of one claim
    "recover/requeue_rest": "WHERE child = %(child)s AND token = %(token)s FOR UPDATE",
}
"""Statements that choose claims for the function `requeue`, each with the condition that limits its choice."""
PAIR = "r.child = rest.child AND r.token = rest.token"


def writes(text: str) -> list[tuple[str, str]]:
    """Return the writes to `running` in a text, each with its condition."""
    plain = re.sub(r"--.*", "", text)
    return [(found["what"], " ".join(found["how"].split())) for found in WRITE.finditer(plain)]


STATEMENTS = {
    f"{path.parent.name}/{path.stem}": found
    for path in sorted((FOLDER / "queries").rglob("*.sql"))
    if (found := writes(path.read_text()))
}


SETTLE = {"settle/settle_completed", "settle/settle_members", "settle/settle_jobs"}


def test_every_statement_that_writes_running_is_listed():
    assert set(STATEMENTS) == {*BEGINS, *LOCKED, "claim/claim_more", "steps/begin_count", *SETTLE}
    assert len(STATEMENTS["settle/settle_jobs"]) == 2


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_that_writes_running_names_the_fencing_token(name):
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


def test_release_is_limited_to_claims_that_it_may_end():
    found = {
        f"{path.parent.name}/{path.stem}": " ".join(path.read_text().split())
        for path in sorted((FOLDER / "queries").rglob("*.sql"))
        if "jobherd.requeue(" in path.read_text()
    }
    assert found.keys() == RELEASES.keys()
    for name, condition in RELEASES.items():
        assert condition in found[name], name


def test_schema_functions_only_insert_claims_and_requeue_them_by_token():
    begun, kept, gone = [one for file in sorted((FOLDER / "schema").glob("*.sql")) for one in writes(file.read_text())]
    assert [what for what, _ in (begun, kept, gone)] == ["INSERT INTO", "UPDATE", "DELETE FROM"]
    assert PAIR in kept[1]
    assert PAIR in gone[1]


def test_no_python_module_writes_running_directly():
    root = FOLDER.parent
    for folder in ("supervisor", "workers", "handlers"):
        for path in (root / folder).rglob("*.py"):
            assert not writes(path.read_text()), path


def test_statement_without_a_fencing_token_is_detected():
    assert not FENCED.search(
        writes("WITH a AS (\n    DELETE FROM jobherd.running WHERE child = %(child)s\n    RETURNING jobs\n)")[0][1]
    )
