"""All of the SQL, and the way to it.

One statement a file in `queries/`, named verb_noun; forward-only `migrations/`; `schema.sql`, generated from them for people to read.
This package knows no connection but the one `migrate` is handed, and no job: it hands out text.

How a job lives is the first thing to read: the head of `migrations/0001_jobs.sql`. State is table. A claim moves a batch of whole
rows from `ready` into one row of `running`; a settlement deletes that row and puts each job where its new state says. Measured on
two cores with PostgreSQL 15 (pgbench, two clients, batches of 100, claim and complete in one statement): integer keys and parallel
arrays 270,000 to 282,000 jobs/s; whole rows in an array with text names, as here, 191,000 to 219,000; the same with the second
index, by id, 175,000 to 220,000. The readable form costs a fifth of a ceiling that Python cannot reach; it was taken.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

SCHEMA = "jobherd"
CHANNEL = "jobherd_jobs"

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_PARAMETER = re.compile(r"%\((\w+)\)s")


def check_schema(name: str) -> str:
    """Return `name` if it can be the name of our schema, or raise ValueError with the rule.

    The name is put into statements as it stands, so nothing but a plain identifier may pass.

    >>> check_schema("jobs_eu")
    'jobs_eu'
    """
    if not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_"):
        msg = f"schema {name!r} is not usable: lower-case letters, digits and _, at most 41 characters, not starting with a digit or pg_"
        raise ValueError(msg)
    return name


@cache
def load(name: str, schema: str = SCHEMA) -> str:
    """Return the statement `name` (a path below `queries/` without the ending), for the given schema.

    Raises FileNotFoundError if there is no such statement. The text is sent as written; only another schema's name is put in.

    >>> load("list_migrations").splitlines()[-1]
    'SELECT version FROM jobherd.migrations WHERE area = %(area)s ORDER BY version'
    """
    return in_schema((files(__name__) / "queries" / f"{name}.sql").read_text(encoding="utf-8"), schema)


@cache
def numbered(name: str, schema: str = SCHEMA) -> tuple[str, tuple[str, ...]]:
    """Return the statement with `$1, $2, ...` for its parameters, and their names in that order.

    For whoever speaks libpq without a driver between: the parent, which must never wait for an answer, and its children, whose jobs must not wait for
    a driver.
    """
    order: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = "\n".join(line for line in load(name, schema).splitlines() if not line.lstrip().startswith("--"))
    return _PARAMETER.sub(place, text), tuple(order)


def in_schema(text: str, schema: str) -> str:
    """Return `text` with its tables in `schema` instead of `jobherd`, also where a name is put together: `'jobherd.' || part`."""
    if schema == SCHEMA:
        return text
    check_schema(schema)
    return re.sub(r"\bjobherd\.(?=[a-z%'])", f"{schema}.", text).replace("SCHEMA IF NOT EXISTS jobherd", f"SCHEMA IF NOT EXISTS {schema}")
