"""Every statement in `sql/queries/` is loaded by the product, and every name that it loads exists."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from jobherd import sql

SQL = Path(sql.__file__).parent
ROOT = SQL.parent
FILES = {str(path.relative_to(SQL / "queries").with_suffix("")) for path in (SQL / "queries").rglob("*.sql")}
PARTS = {name for name in FILES if name.count("/") > 1}
"""Conditions and walks: inserted into a statement, never sent alone."""
COMING = {"remote/store_extension"}
"""Statements of the gateway's unary calls, which are being built: they are not loaded yet."""
FOLDERS = {name.split("/")[0] for name in FILES}
A_NAME = re.compile(rf"({'|'.join(FOLDERS)})/[a-z_*]*[a-z*]")


def texts() -> list[tuple[str, str]]:
    """Return the string constants of the product, each with its file. `*` is the text that an f-string inserts."""
    found = []
    for folder in ("sql", "handlers", "workers", "supervisor"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values]
                    found.append((str(path.relative_to(ROOT)), "".join(parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append((str(path.relative_to(ROOT)), node.value))
    return found


NAMES = [(file, text) for file, text in texts() if A_NAME.fullmatch(text)]


def matches(name: str) -> set[str]:
    """Return the statements that a name of the code can mean."""
    pattern = re.compile(re.escape(name).replace(r"\*", "[a-z_]+"))
    return {file for file in FILES if pattern.fullmatch(file)}


def test_every_name_that_is_loaded_exists():
    assert [(file, name) for file, name in NAMES if not matches(name)] == []


def test_every_statement_is_loaded_by_the_product():
    loaded = {found for _, name in NAMES for found in matches(name)}
    assert sorted(FILES - PARTS - COMING - loaded) == []


def test_every_condition_and_walk_is_used():
    said = {text for _, text in texts()}
    assert {
        name for name in PARTS - COMING if name.split("/")[-1] not in said and f"~{name.split('/')[-1]}" not in said
    } == set()


def test_no_statement_is_loaded_by_its_last_name_only():
    """`load` would fail only when that code runs."""
    stems = {name.split("/")[-1] for name in FILES - PARTS}
    assert [(file, text) for file, text in texts() if text in stems] == []


def test_process_does_not_read_statements_of_a_later_version():
    """An upgrade in place replaces files while the old supervisor runs. Its workers need statements not used yet."""
    sql.read.cache_clear()
    sql.load.cache_clear()
    sql.load_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "files", None)
        for name in sorted(FILES - PARTS):
            sql.load(name)
        sql.load(sql.seeking("claim/claim_jobs"))
        sql.load(sql.narrow("claim/claim_job", "of_kinds", "near_head"), "other")
        for file in os.listdir(SQL / "table_templates"):
            sql.read(f"table_templates/{file.removesuffix('.sql')}")


def test_claim_job_chooses_the_queue_as_claim_jobs_does():
    """Each statement is sent as it is written, so the two files repeat the choice and must stay equal."""

    def choice(name: str) -> list[str]:
        lines = [line.strip() for line in sql.load(name).splitlines() if not line.strip().startswith("--")]
        return re.split("(?:picked|taken) AS", " ".join(lines))[0].replace("),", ") ,").split()

    assert choice("claim/claim_job") == choice("claim/claim_jobs")
    assert len(choice("claim/claim_job")) > 100
