"""All of the SQL, and the way to it.

One statement a file in `queries/`, named verb_noun; those about a table that an application owns are templates in `tables/`, filled by
`composed.py`; forward-only `migrations/`, applied by `migrate.py`, from which `drift.py` tells how a schema differs; `schema.sql`, generated from them
for people to read. `parameters.py` writes values as PostgreSQL reads them. `forge/` is the example application's.
This package knows no connection but the one `migrate` is handed, and no job: it hands out text.

How a job lives is the first thing to read: the head of `migrations/0001_jobs.sql`. State is table. A claim moves a batch of whole
rows from `ready` into one row of `running`; a settlement deletes that row and puts each job where its new state says. Measured on
two cores with PostgreSQL 15 (pgbench, two clients, batches of 100, claim and complete in one statement): integer keys and parallel
arrays 270,000 to 282,000 jobs/s; whole rows in an array with text names, as here, 191,000 to 219,000; the same with the second
index, by id, 175,000 to 220,000. The readable form costs a fifth of a ceiling that Python cannot reach; it was taken.

What was rejected, measured again (tests/bench/layouts.py, two sessions, batches of 100, no history, nothing vacuumed; counts, for these
depend on no neighbour):
    one table with a state, claimed and settled by updates      20.7 buffers and 1,038 bytes of log a job
    the same, settled by a delete                               14.5 and 732
    a narrow table of what waits beside one that keeps the jobs 11.1 and 446: less log, but two rows for each job, and a join to show it
    state is table, as here                                     10.1 and 516
    the same, a partition for each of 64 queues                  7.5 and 516: named queues alone; a walk over all would ask each partition
The past's ends in a btree cost 65 bytes of log a job more than summarised (0014_scale.sql).
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

SCHEMA = "jobherd"
CHANNEL = "jobherd_jobs"

NARROWED = "-- AND what narrows it"
"""The line of a statement that takes conditions on the jobs it picks: each stands there, behind an AND. Without any it is a comment."""

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
RESERVED = frozenset((
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary", "both", "case", "cast",
    "check", "collate", "collation", "column", "concurrently", "constraint", "create", "cross", "current_catalog", "current_date",
    "current_role", "current_schema", "current_time", "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct",
    "do", "else", "end", "except", "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike",
    "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime",
    "localtimestamp", "natural", "not", "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing",
    "primary", "references", "returning", "right", "select", "session_user", "similar", "some", "symmetric", "system_user", "table",
    "tablesample", "then", "to", "trailing", "true", "union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window",
    "with",
))  # fmt: skip
"""Words that PostgreSQL takes for no name unless they are quoted (those of PostgreSQL 18; a test asks the server)."""
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
    if name in RESERVED:
        msg = f"{name!r} is a reserved word of SQL"
        raise ValueError(msg)
    return name


WALK, END_OF_WALK = "-- WALK\n", "-- END OF THE WALK\n"
"""Between these lines stands how a claim gets to its jobs; `seeking` puts another way there, and leaves all else as it is."""

_own: dict[str, str] = {}
_MOST_OWN = 50


def narrow(statement: str, *conditions: str) -> str:
    """Return the name of a statement that picks only jobs for which the conditions hold, for `load` and `numbered`.

    conditions: names of files in `queries/conditions/`, or what `own_condition` has returned.

    >>> narrow("claim_jobs", "of_kinds")
    'claim_jobs+of_kinds'
    """
    return "+".join((statement, *conditions))


def seeking(statement: str) -> str:
    """Return the name of a statement that seeks its jobs where the given one walks to them, for `load` and `numbered`.

    >>> seeking("claim_jobs")
    'claim_jobs~sought'
    """
    return statement + "~sought"


def own_condition(text: str, prefix: str, given: Container[str]) -> str:
    """Return a name for a condition that a user of ours has written, with `prefix` before the names of its parameters.

    given: the names of the parameters there are. Raises ValueError if it asks for others, or if there have been too many different
    conditions: each is prepared and kept by every session.
    """
    if missing := [name for name in _PARAMETER.findall(text) if name not in given]:
        message = f"the condition asks for %({missing[0]})s, which is not among its parameters"
        raise ValueError(message)
    text = _PARAMETER.sub(rf"%({prefix}\1)s", text).replace("%%", "%")
    name = f"own_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    if name not in _own and len(_own) >= _MOST_OWN:
        message = f"more than {_MOST_OWN} different conditions: put what changes into their parameters, not into their text"
        raise ValueError(message)
    _own[name] = text
    return name


def _read(folder: str, name: str) -> str:
    return (files(__name__) / folder / f"{name}.sql").read_text(encoding="utf-8")


def _narrowed(text: str, conditions: list[str]) -> str:
    if NARROWED not in text:
        message = f"the statement has no place for conditions: no line {NARROWED!r}"
        raise ValueError(message)
    # Each on lines of its own: what it ends with may be a comment.
    added = "".join(f"AND (\n{_own[name] if name in _own else _read('queries/conditions', name)}\n)\n" for name in conditions)
    return text.replace(NARROWED, "\n" + added)


@cache
def load(name: str, schema: str = SCHEMA) -> str:
    """Return the statement `name` (a path below `queries/` without the ending, or what `narrow` or `seeking` returned), for the given schema.

    Raises FileNotFoundError if there is no such statement. The text is sent as written; only another schema's name is put in.

    >>> load("list_migrations").splitlines()[-1]
    'SELECT version FROM jobherd.migrations WHERE area = %(area)s ORDER BY version'
    """
    statement, *conditions = name.split("+")
    statement, _, way = statement.partition("~")
    text = _read("queries", statement)
    if way:
        before, _, rest = text.partition(WALK)
        text = before + _read("queries/walks", way) + rest.partition(END_OF_WALK)[2]
    return in_schema(_narrowed(text, conditions) if conditions else text, schema)


def load_all(schema: str = SCHEMA) -> None:
    """Read every statement now: later there may be no file left that could be opened, or the files of another version."""
    for file in (files(__name__) / "queries").iterdir():
        if file.name.endswith(".sql"):
            load(file.name.removesuffix(".sql"), schema)


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
