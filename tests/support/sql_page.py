"""Makes `docs/reference/sql.md` from the comments of the schema: functions, views and tables.

    python -m tests.support.sql_page

A function without a comment is private.
"""

from __future__ import annotations

import re

import psycopg

from jobherd.sql.migrate import migrate
from tests.support.checkout import ROOT
from tests.support.postgres import Cluster

PAGE = ROOT / "docs" / "reference" / "sql.md"
HEAD = """# SQL functions and views

<!-- Made by `python -m tests.support.sql_page` from the comments of the schema. Do not edit. -->

What any program that speaks SQL can call and read, in the schema `jobherd`. A call is part of the caller's transaction. For the roles, see
[Security](../how-to/operate/security.md#roles). Functions that are not on this page are private and can change in any release.
"""
ROLES = ("jobherd_enqueue", "jobherd_work", "jobherd_read", "jobherd_admin")
FUNCTIONS = """
SELECT p.proname,
       pg_get_function_arguments(p.oid),
       pg_get_function_result(p.oid),
       obj_description(p.oid, 'pg_proc'),
       EXISTS (SELECT FROM aclexplode(p.proacl) WHERE grantee = 0),
       ARRAY(SELECT role FROM unnest(%s::text[]) AS role WHERE has_function_privilege(role, p.oid, 'EXECUTE'))
  FROM pg_proc AS p
 WHERE p.pronamespace = 'jobherd'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NOT NULL
 ORDER BY p.proname, p.pronargs
"""
RELATIONS = """
SELECT c.relname,
       obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
              WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum)
  FROM pg_class AS c
 WHERE c.relnamespace = 'jobherd'::regnamespace AND c.relkind = ANY (%s) AND NOT c.relispartition
   AND obj_description(c.oid, 'pg_class') IS NOT NULL
 ORDER BY c.relname
"""
EXAMPLE = re.compile(r"(SELECT jobherd\.[^;]+;)")


def render(connection: psycopg.Connection[object]) -> str:
    """Return the page for the schema of this database."""
    parts = [HEAD, "## Functions\n"]
    functions: list[tuple[str, str, str, str, bool, list[str]]] = connection.execute(
        FUNCTIONS, [list(ROLES)]
    ).fetchall()  # type: ignore[assignment]
    for name, arguments, result, comment, public, roles in functions:
        if public:
            who = "every role that may use the schema"
        else:
            who = ", ".join(f"`{role}`" for role in roles) or "the owner of the schema"
        arguments = re.sub(r"NULL::[a-z ]+?(\[\])?(?=,|$)", "NULL", arguments)
        arguments = re.sub(r"('[^']*')::\w+", r"\1", arguments).replace("timestamp with time zone", "timestamptz")
        result = result.replace("timestamp with time zone", "timestamptz")
        text = re.sub(rf":? *{EXAMPLE.pattern}", lambda at: "." if at[0].startswith(":") else "", comment).strip()
        parts.append(f"### {name}\n\n```text\n{name}({arguments}) returns {result}\n```\n")
        parts.append(f"{_cell(text)}\n\nCallers: {who}.\n")
        parts += [f"```sql\n{example}\n```\n" for example in EXAMPLE.findall(comment)]
    parts.append("## Views\n")
    for name, comment, columns in connection.execute(RELATIONS, [["v"]]).fetchall():  # type: ignore[misc]
        shown = ", ".join(f"`{column}`" for column in columns).replace("timestamp with time zone", "timestamptz")
        parts.append(f"### The view {name}\n\n{_cell(comment)}\n\nColumns: {shown}.\n")
    parts.append(
        "## Tables\n\nRead them if no view has what you need. Their columns can change in any release; never write to them.\n"
    )
    parts.append("| table | content |\n|---|---|")
    parts += [
        f"| `{name}` | {_cell(comment)} |"
        for name, comment, _ in connection.execute(RELATIONS, [["r", "p"]]).fetchall()
    ]  # type: ignore[misc]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Return a comment without its line breaks, with names as code."""
    text = " ".join(text.split()).replace("|", r"\|")
    return re.sub(
        r"'(\*|[a-z_]+)'(?= |,|\.|\))|\b(jobherd\.[a-z_]+|[a-z]+_[a-z_]+)\b", lambda m: f"`{m[1] or m[2]}`", text
    )


if __name__ == "__main__":
    with Cluster() as cluster, psycopg.connect(cluster.dsn("postgres"), autocommit=True) as own:
        migrate(own)
        PAGE.write_text(render(own), encoding="utf-8")
