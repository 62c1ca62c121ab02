"""Loads the SQL of Jobherd: a statement by its path, with the name of the schema and conditions put in.

Must not open connections or handle jobs: this package returns only text.

`queries/` holds one statement a file, named verb_noun, in folders along the path of a job: `enqueue`,
`claim`, `steps`, `settle`, `recover` (after crashes), `lease`, `wake` (notifications), `remote` (sessions
of remote workers). Then come `schedule` (periodic jobs), `maintenance`, `control` (users' actions),
`observe` (users' queries), `session` (settings of a connection), `migrate`, `table` (an application's own
table), `bench`, `doctor`, `top`, `dashboard` and `forge`. A statement is loaded by its path,
`load("claim/claim_jobs")`, so the name in the code is the name to search for.

`table_templates/` holds templates of statements about a table that an application owns, filled by
`table_statements.py`. `schema/` is the schema, one subject a file, and the first migration. Its files run
in the order of their numbers: the tables of jobs and of the fleet, enqueue, claims and their limits, what
users do with jobs, the rollup, jobs that wait for other jobs, flows, steps and signals, schedules, views and
the rest. Later migrations are in `migrations/`, forward only. `migrate.py` applies them; `drift.py` uses
them to report how a schema differs. `parameters.py` writes values in the form that PostgreSQL reads.
`forge/` belongs to the example application. Only `migrate` and `drift` use a connection, which the caller
gives.

Read the head of `schema/01_jobs.sql` first: the life cycle of a job. The state is the table. A
claim moves a batch of whole rows from `ready` into one row of `running`. A settlement deletes that
row and puts each job into the table of its new state. Measured on two cores with PostgreSQL 15
(pgbench, two clients, batches of 100, claim and complete in one statement): integer keys and
parallel arrays 270,000 to 282,000 jobs/s; whole rows in an array with text names, as here, 191,000
to 219,000; the same with the second index, by id, 175,000 to 220,000. The readable form costs a
fifth of a limit that Python cannot reach, so it was chosen.

Rejected layouts, measured again (tests/bench/layouts.py, two sessions, batches of 100, no history,
nothing vacuumed; counts, because these do not depend on other load):

    one table with a state, claimed and settled by updates     20.7 buffers and 1,038 bytes of log a job
    the same, settled by a delete                              14.5 and 732
    a narrow table of waiting jobs, one that keeps all jobs    11.1 and 446, but two rows a job, and a join
    the state is the table, as here                            10.1 and 516
    the same, a partition for each of 64 queues                7.5 and 516, for named queues only;
                                                               a walk needs every partition

The finish times of the history in a b-tree cost 65 bytes of log a job more than summaries
(schema/03_history.sql).
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container
    from importlib.resources.abc import Traversable

SCHEMA = "jobherd"
CHANNEL = "jobherd_jobs"

NARROWED = "-- AND the conditions of this claim"
"""The line of a statement that is replaced by conditions on the jobs it picks, each after an AND.
Without conditions it stays a comment.
"""

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check
    collate collation column concurrently constraint create cross current_catalog current_date
    current_role current_schema current_time current_timestamp current_user default deferrable
    desc distinct do else end except false fetch for foreign freeze from full grant group having
    ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric
    system_user table tablesample then to trailing true union unique user using variadic verbose
    when where window with
    """.split()  # noqa: SIM905  # a list would have a line for each word
)
"""Words that PostgreSQL does not accept as names unless they are quoted.

Those of PostgreSQL 18; a test checks them against the server.
"""
_PARAMETER = re.compile(r"%\((\w+)\)[sb]")


def check_schema(name: str) -> str:
    """Return `name` if it can be the name of Jobherd's schema, or raise ValueError with the rule.

    The name is put into statements as it is, so only a plain identifier may pass.

    >>> check_schema("jobs_eu")
    'jobs_eu'
    """
    if not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_"):
        msg = (
            f"schema {name!r} is not usable: lower-case letters, digits and _, at most 41 characters, not "
            "starting with a digit or pg_"
        )
        raise ValueError(msg)
    if name in RESERVED:
        msg = f"{name!r} is a reserved word of SQL"
        raise ValueError(msg)
    return name


WALK, END_OF_WALK = "-- WALK\n", "-- END OF THE WALK\n"
"""The lines around the part of a claim that finds its jobs; `seeking` replaces only that part."""

_own: dict[str, str] = {}
_MOST_OWN = 50


def narrow(statement: str, *conditions: str) -> str:
    """Return the name of a statement that picks only jobs that meet the conditions.

    The name is for `load` and `numbered`.

    conditions: names of files in `queries/claim/conditions/`, or results of `own_condition`.

    >>> narrow("claim/claim_jobs", "of_kinds")
    'claim/claim_jobs+of_kinds'
    """
    return "+".join((statement, *conditions))


def seeking(statement: str) -> str:
    """Return the name of a statement that finds its jobs by index seeks, not by a walk.

    The name is for `load` and `numbered`.

    >>> seeking("claim/claim_jobs")
    'claim/claim_jobs~seek'
    """
    return statement + "~seek"


def own_condition(text: str, prefix: str, given: Container[str]) -> str:
    """Return a name for a condition that a user has written.

    prefix: put before the names of the condition's parameters.
    given: the names of the available parameters. Raises ValueError if the condition uses others, or
    if there have been too many different conditions: each is prepared and kept by every session.
    """
    if missing := [name for name in _PARAMETER.findall(text) if name not in given]:
        message = f"the condition uses %({missing[0]})s, which is not among its parameters"
        raise ValueError(message)
    text = _PARAMETER.sub(rf"%({prefix}\1)s", text).replace("%%", "%")
    name = f"own_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    if name not in _own and len(_own) >= _MOST_OWN:
        message = (
            f"more than {_MOST_OWN} different conditions: put what changes into their parameters, not into their text"
        )
        raise ValueError(message)
    _own[name] = text
    return name


@cache
def read(path: str) -> str:
    """Return the text of a file below `sql/`, given without its ending.

    Upgrade: cached, so that a process started by the old version never gets a file of the new one.
    """
    return (files(__name__) / f"{path}.sql").read_text(encoding="utf-8")


def load_all() -> None:
    """Read every statement, condition and template now.

    Later the process may have no free file descriptor, or the files may be those of another
    version. Processes forked from this one have the texts too.
    """

    def walk(folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{path}/{entry.name}")
            elif entry.name.endswith(".sql"):
                read(f"{path}/{entry.name.removesuffix('.sql')}")

    for folder in ("queries", "table_templates"):
        walk(files(__name__) / folder, folder)


def _narrowed(text: str, conditions: list[str]) -> str:
    if NARROWED not in text:
        message = f"the statement has no place for conditions: no line {NARROWED!r}"
        raise ValueError(message)
    # Each on its own lines: a condition may end with a comment.
    added = "".join(
        f"AND (\n{_own[name] if name in _own else read(f'queries/claim/conditions/{name}')}\n)\n" for name in conditions
    )
    return text.replace(NARROWED, "\n" + added)


@cache
def load(name: str, schema: str = SCHEMA) -> str:
    """Return the statement `name` for the given schema.

    name: a path below `queries/` without the ending, or a result of `narrow` or `seeking`. Raises
    FileNotFoundError if there is no such statement. The text is returned as written, only with the
    name of another schema.

    >>> load("migrate/list_migrations").splitlines()[-1]
    'SELECT version, name FROM jobherd.migrations WHERE area = %(area)s ORDER BY version'
    """
    statement, *conditions = name.split("+")
    statement, _, walk = statement.partition("~")
    text = read(f"queries/{statement}")
    if walk:
        before, _, rest = text.partition(WALK)
        text = before + read(f"queries/claim/walks/{walk}") + rest.partition(END_OF_WALK)[2]
    return in_schema(_narrowed(text, conditions) if conditions else text, schema)


@cache
def numbered(name: str, schema: str = SCHEMA) -> tuple[str, tuple[str, ...]]:
    """Return the statement with `$1, $2, ...` for its parameters, and their names in that order.

    For code that uses libpq without a driver: the supervisor, which must never wait for an answer,
    and its workers, whose jobs must not wait for a driver.
    """
    order: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = "\n".join(line for line in load(name, schema).splitlines() if not line.lstrip().startswith("--"))
    return _PARAMETER.sub(place, text), tuple(order)


def in_schema(text: str, schema: str) -> str:
    """Return `text` with its tables in `schema` instead of `jobherd`.

    This includes concatenated names: `'jobherd.' || part`.
    """
    if schema == SCHEMA:
        return text
    check_schema(schema)
    return re.sub(r"\bjobherd\.(?=[a-z%'])", f"{schema}.", text).replace(
        "SCHEMA IF NOT EXISTS jobherd", f"SCHEMA IF NOT EXISTS {schema}"
    )
