"""Chooses the database of a command, and connects to it.

The database is the one that is named (--dsn, JOBHERD_DSN, DATABASE_URL, a file). Otherwise it is
the embedded PostgreSQL of the working directory, shared with a supervisor that runs there. Only
`run`, `migrate` and `forge` migrate the schema; `enqueue` creates a missing one. A database error
ends as a sentence with an exit code. PostgreSQL's error details are not shown, because they contain
rows.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.handlers._enqueue.missing_schema import migrating
from jobherd.handlers._values.json_output import JsonText
from jobherd.sql.migrate import SchemaError, migrate, pending
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, given_flags
from jobherd.supervisor.cli.console import complain
from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.sources import SettingsError
from jobherd.workers.database.errors import is_disconnected, takes_no_writes
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

_OWN = re.compile(r"jobherd(?:\.\w+)?: ")
"""How the messages of Jobherd's own functions begin."""
_LIBPQ_ADVICE = re.compile(r"^connection is bad: |,? Is the server running .*?\?")
"""What is left out of libpq's reason, because Jobherd's advice follows it."""
_REJECTED = re.compile(
    r"FATAL: (?:(?:role|database) .* does not exist|.* authentication failed|no pg_hba\.conf entry|"
    r"role .* is not permitted to log in|permission denied for database)"
)
"""What a server that answers says about a connection that it never accepts. libpq gives no code."""
_UNGRANTED = re.compile(r"permission denied for (?:schema|table|view|sequence|function)\b")
CONNECT_TIMEOUT = 10
"""Seconds. A value in the DSN or in PGCONNECT_TIMEOUT takes precedence."""


class JsonLoader(TextLoader):
    """Returns JSON as text.

    psycopg's own loader raises for documents that Python cannot represent. The job could not be
    shown then.
    """

    def load(self, data: psycopg.abc.Buffer) -> JsonText:
        text = super().load(data)
        return JsonText(text if isinstance(text, str) else text.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Session:
    """A connection that runs the statements of `sql/queries`."""

    connection: psycopg.Connection[object]
    schema: str

    def rows(self, name: str, parameters: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        """Run a statement; return its rows by column name."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.load(name, self.schema).encode(), parameters or {}).fetchall()

    def send(self, name: str, parameters: Mapping[str, object] | None = None) -> None:
        """Run a statement and ignore its result."""
        self.connection.execute(sql.load(name, self.schema).encode(), parameters or {})

    def row(self, name: str, parameters: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Run a statement that returns one row; return that row."""
        return self.rows(name, parameters)[0]


def load_settings(flags: Mapping[str, object], *, only: tuple[str, ...] | None = None) -> Settings:
    """Return the settings. Raises CommandError if they are invalid."""
    try:
        return Settings.load(flags, only=only)
    except SettingsError as problem:
        raise CommandError("\njobherd: ".join(problem.problems), ExitCode.CONFIGURATION) from None


@contextmanager
def chosen(settings: Settings, *, tell: Callable[[str], None] | None = None, guarded: bool = False) -> Iterator[str]:
    """Yield the DSN of the database to use.

    Start the embedded one if needed, and release it at the end.

    Args:
        settings: name the database, or the folder of the embedded one.
        tell: called with a sentence about the embedded database if none was named; default: print
            the sentence if this command had to start it.
        guarded: restart the embedded database if it dies; for a long-running command.
    """
    if settings.dsn is not None:
        yield settings.dsn
        return
    # Needed only without a database of your own.
    from jobherd.supervisor.embedded import lifecycle  # noqa: PLC0415

    try:
        server = lifecycle.start(settings.embedded_dir)
    except lifecycle.EmbeddedUnavailable as problem:
        raise CommandError(f"{problem}", ExitCode.NO_DATABASE) from None
    if tell is None and server.started:
        tell = complain
    if tell is not None:
        tell(
            f"no database is named; using the embedded PostgreSQL {server.version} in {server.data.parent} "
            "(name one with --dsn, JOBHERD_DSN or DATABASE_URL)"
        )
    try:
        with _guarded(settings) if guarded else nullcontext():
            yield server.dsn
    finally:
        try:
            server.leave()
        except lifecycle.EmbeddedUnavailable as problem:
            complain(str(problem))  # the requested work is done


def _guarded(settings: Settings) -> AbstractContextManager[None]:
    from jobherd.supervisor.embedded.guard import guarded  # noqa: PLC0415

    return guarded(settings.embedded_dir, log_format=settings.log_format, log_level=settings.log_level)


def connect(dsn: str, *, name: str) -> psycopg.Connection[object]:
    """Return a connection that commits each statement. Raises psycopg.OperationalError."""
    given = conninfo_to_dict(dsn)
    extra: dict[str, Any] = {"fallback_application_name": f"jobherd {name}", "client_encoding": "UTF8"}
    if "connect_timeout" not in given:
        extra["connect_timeout"] = CONNECT_TIMEOUT
    if "," in f"{given.get('host', '')}{given.get('hostaddr', '')}":
        # The first that answers may be a standby.
        extra["target_session_attrs"] = given.get("target_session_attrs", "read-write")
    connection: psycopg.Connection[object] = psycopg.connect(make_conninfo(dsn, **extra), autocommit=True, context=OURS)
    connection.prepare_threshold = None  # a pooler in between may send each statement to another backend
    try:
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, JsonLoader)
        connection.execute(sql.load("session/disable_jit").encode(), {"promised": connection.info.backend_pid})
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def session(arguments: argparse.Namespace, *, may_create: bool = False) -> Iterator[Session]:
    """Yield a session on the database of the command line, after a check of its schema.

    Raises CommandError for every error of the database.

    Args:
        arguments: the command line.
        may_create: create the schema if it does not exist.
    """
    settings = load_settings(given_flags(arguments), only=CONNECTION)
    with chosen(settings) as dsn, explained(), connect(dsn, name=arguments.command) as connection:
        at = Session(connection, settings.schema)
        look_at_schema(at, may_create=may_create)
        # Otherwise a pooler shares this backend with other clients.
        if at.row("session/show_backend")["backend"] == connection.info.backend_pid:
            at.send("session/pin_search_path", {"local": False})
        yield at


@contextmanager
def explained() -> Iterator[None]:
    """Convert database errors to a CommandError with a sentence and an exit code."""
    try:
        yield
    except SchemaError as problem:
        raise CommandError(str(problem), ExitCode.CONFIGURATION) from None
    except (
        errors.UndefinedTable,
        errors.UndefinedFunction,
        errors.UndefinedColumn,
        errors.InvalidSchemaName,
    ) as problem:
        raise CommandError(
            f"the database's schema does not fit ({_said(problem)}): run `jobherd migrate`", ExitCode.CONFIGURATION
        ) from None
    except errors.InsufficientPrivilege as problem:
        advice = (
            ". Grant its role what the command needs: jobherd_read to show, jobherd_enqueue to enqueue, jobherd_admin "
            "to change, jobherd_work to run a supervisor"
            if _UNGRANTED.match(_said(problem))
            else "; use a role that has the right to do it"
        )
        raise CommandError(f"the database rejects this: {_said(problem)}{advice}", ExitCode.CONFIGURATION) from None
    except errors.ReadOnlySqlTransaction as problem:
        raise CommandError(
            f"the database takes no writes: {_said(problem)}; is it a standby, and is --dsn or JOBHERD_DSN right?",
            ExitCode.NO_DATABASE,
        ) from None
    except (errors.InvalidParameterValue, errors.ProgramLimitExceeded) as problem:
        if takes_no_writes(problem):
            raise CommandError(f"the database takes no writes: {_said(problem)}", ExitCode.NO_DATABASE) from None
        raise CommandError(_said(problem), ExitCode.USAGE) from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
        if not is_disconnected(problem):
            raise CommandError(f"the database rejects this: {_said(problem)}") from None
        if lacks_room(problem):
            raise CommandError(f"the database is out of space: {_said(problem)}", ExitCode.NO_DATABASE) from None
        if rejects_connection(problem):
            raise CommandError(
                f"the database rejects the connection: {_said(problem)}; correct --dsn or JOBHERD_DSN",
                ExitCode.NO_DATABASE,
            ) from None
        raise CommandError(
            f"the database does not answer: {_said(problem)}. Is PostgreSQL up, and is --dsn or JOBHERD_DSN right?",
            ExitCode.NO_DATABASE,
        ) from None
    except psycopg.Error as problem:
        own = _OWN.match(problem.diag.message_primary or "")
        raise CommandError(
            _said(problem) if own else f"the database rejects this: {_said(problem)}", ExitCode.WRONG
        ) from None
    except UnicodeEncodeError as problem:
        given = problem.object[max(0, problem.start - 20) : problem.end + 20]
        raise CommandError(f"{given!r} is not UTF-8, and the database accepts no other text", ExitCode.USAGE) from None


def lacks_room(problem: psycopg.Error) -> bool:
    """Whether the server lacks a resource: disk space, memory, or a free connection."""
    return (problem.sqlstate or "")[:2] == "53"


def rejects_connection(problem: psycopg.Error) -> bool:
    """Whether the server answers, and rejects the user, the database or the password."""
    return _REJECTED.search(_said(problem)) is not None


def why_away(problem: psycopg.Error) -> str:
    """Return why a connection failed, in one line and without secrets.

    libpq repeats host, port and user, but never the password.
    """
    return _said(problem)


def look_at_schema(at: Session, *, may_create: bool = False) -> None:
    """Check that the database has the schema of this version. Raises CommandError if it does not.

    Args:
        at: the session.
        may_create: create the schema if it does not exist.
    """
    schema = at.schema
    missing = pending(at.connection, schema=schema)
    if not missing:
        return
    present = at.row("migrate/find_migrations")["present"]
    if may_create and present:
        return  # the statement of `enqueue` is the same in every version
    if may_create:
        migrate(at.connection, schema=schema)
        complain(f"made the schema {schema!r} in this database")
        return
    text = (
        f"the schema {schema!r} is {count(missing, 'migration', 'migrations')} behind this version"
        if present
        else f"the database has no schema {schema!r} yet"
    )
    raise CommandError(f"{text}: run `{migrating(schema)}`", ExitCode.CONFIGURATION)


def own_words(problem: psycopg.Error) -> str:
    """Return the server's message, without the name of the function of Jobherd that raised it."""
    text = problem.diag.message_primary or str(problem).strip() or type(problem).__name__
    return text[own.end() :] if (own := _OWN.match(text)) else text


def _said(problem: psycopg.Error) -> str:
    text = own_words(problem)
    if problem.diag.message_hint:
        text = f"{text}. {problem.diag.message_hint}"
    return redact_dsn(_LIBPQ_ADVICE.sub("", " ".join(text.split()))).rstrip(".")
