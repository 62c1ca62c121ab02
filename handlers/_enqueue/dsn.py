"""Finds the database: a given address, or the one that the command line would use.

That is the command line in the same folder. No session is opened here. The first place that names
an address wins: the argument, the environment, `jobherd.toml` or `[tool.jobherd]` in
`pyproject.toml`, the running embedded PostgreSQL of the folder. The command line starts the
embedded server. A producer does not, because the server would end with the producer.
"""

from __future__ import annotations

import os
import re
from math import ceil
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from jobherd import sql
from jobherd.handlers._enqueue import embedded
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._enqueue.config_files import FILES, read_table, working_directory

KEPT_ALIVE: Final = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""In seconds, the last in milliseconds. A host that disappeared sends nothing: without these
settings a statement would wait 15 minutes for its answer, and waiting for a notification two
hours."""
_OURS: Final = {"autocommit": True, "application_name": "jobherd client", "client_encoding": "UTF8", "context": OURS}


_URL_SECRET: Final = re.compile(r"(://[^:/@\s]*:)[^@\s]*(?:@[^\s/?@]*)*(@)")
_KEY_SECRET: Final = re.compile(r"\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&'\"]+)", re.IGNORECASE)
_HOST_SECRET: Final = re.compile(r"""(host(?: name)? ['"])[^'"]*(@)""")
"""A password with an unescaped @ ends at its first @ for libpq, which quotes the rest as the
host."""
_UNKNOWN_NAME: Final = re.compile(r'invalid (?:URI query parameter|connection option)\W+([A-Za-z_]\w*)"')

VARIABLES: Final = ("JOBHERD_DSN", "DATABASE_URL")
_read: dict[Path, tuple[dict[str, object], str]] = {}
"""Configuration files that this process has read, by folder: a client per transaction must not
parse one each time."""


class NotConfiguredError(RuntimeError):
    """No database is configured, or its configuration is invalid."""


def redact_dsn(text: str) -> str:
    """Return `text` with passwords masked.

    Covers both forms of connection strings, and libpq's error messages.

    >>> redact_dsn("postgresql://app:hunter2@db/jobs")
    'postgresql://app:***@db/jobs'
    >>> redact_dsn("host=db password='hunter 2' dbname=jobs")
    'host=db password=*** dbname=jobs'
    >>> redact_dsn("failed to resolve host 'ter2@db'")
    "failed to resolve host '***@db'"
    """
    if "://" in text:
        text = _URL_SECRET.sub(r"\1***\2", text)
    if "@" in text:
        text = _HOST_SECRET.sub(r"\1***\2", text)
    if "assword" in text or "ASSWORD" in text:
        text = _KEY_SECRET.sub(r"\1***", text)
    return text


def unknown_parameter(problem: BaseException) -> str | None:
    """Return the connection parameter that libpq does not support.

    Returns None if the address has another error. The rest of libpq's message repeats parts of the
    address and must not be shown.

    >>> unknown_parameter(psycopg.ProgrammingError('invalid URI query parameter: "pgbouncer"'))
    'pgbouncer'
    """
    found = _UNKNOWN_NAME.search(str(problem))
    return found[1] if found else None


def find_dsn(dsn: str | None = None) -> str:
    """Return the address of the database.

    dsn: an address, which overrides all other places.

    Raises NotConfiguredError for an invalid address. If there is none, the error lists every place
    that was searched.
    """
    if dsn:
        return _checked(dsn, "dsn")
    if name := next(filter(os.environ.get, VARIABLES), None):
        return _checked(os.environ[name], f"dsn (from {name})")
    if found := _address("dsn"):
        return found
    directory = _embedded_directory()
    if found := embedded.find_running(directory):
        return found
    message = (
        f"no database is configured. Searched: {' and '.join(VARIABLES)} (not set), {_searched_files()}, "
        f"the embedded PostgreSQL in {directory.absolute() / embedded.FOLDER} (not running). "
        "Start `jobherd run` in this folder, set JOBHERD_DSN, or pass dsn='postgresql://user@host/name'"
    )
    raise NotConfiguredError(message)


def find_listen_dsn(dsn: str | None = None) -> tuple[str, bool]:
    """Return the address to listen on, and whether it was configured for listening as `listen_dsn`.

    `listen_dsn` overrides the configured address, but not the argument.

    dsn: an address, which overrides all other places.
    """
    if dsn:
        return find_dsn(dsn), False
    if named := os.environ.get("JOBHERD_LISTEN_DSN"):
        return _checked(named, "listen_dsn (from JOBHERD_LISTEN_DSN)"), True
    named = _address("listen_dsn")
    return named or find_dsn(), bool(named)


def find_schema(schema: str | None = None) -> str:
    """Return Jobherd's schema: `schema`, else JOBHERD_SCHEMA, else that of a file, else "jobherd".

    Raises ValueError for an invalid name, NotConfiguredError for a file that cannot be read.
    """
    if schema is not None:
        return sql.check_schema(schema)
    named = os.environ.get("JOBHERD_SCHEMA") or _file()[0].get("schema")
    return sql.SCHEMA if named is None else sql.check_schema(str(named))


def without_driver(dsn: str) -> str:
    """Return an address in libpq's form: other tools put a driver's name into DATABASE_URL.

    >>> without_driver("postgresql+asyncpg://app@db/jobs")
    'postgresql://app@db/jobs'
    """
    return re.sub(r"^postgres(?:ql)?\+\w+://", "postgresql://", dsn.strip())


def _file() -> tuple[dict[str, object], str]:
    """Return the working directory's settings, with `_` in their names, and the file's name."""
    here = working_directory()
    if here not in _read:
        problems: list[str] = []
        table, name = read_table(here, problems)
        if problems:
            raise NotConfiguredError("; ".join(problems))
        if not name:
            return {}, ""  # not cached: the file may be written later
        _read[here] = {key.replace("-", "_"): value for key, value in table.items()}, name
    return _read[here]


def _address(key: str) -> str | None:
    table, name = _file()
    value = table.get(key)
    return None if value is None else _checked(value, f"{key} (from {name})")


def _checked(value: object, named: str) -> str:
    """Return an address in libpq's form.

    Raises NotConfiguredError without the address: libpq's message repeats a part of it, which may
    be a password.

    named: the setting, and where it was found.
    """
    given = without_driver(value) if isinstance(value, str) else ""
    problem = 'must be a PostgreSQL address ("postgresql://user@host/name" or "host=... dbname=...")'
    try:
        if given:
            conninfo_to_dict(given)
            return given
    except psycopg.Error as refused:
        if unknown := unknown_parameter(refused):
            problem = f"PostgreSQL has no connection parameter {unknown!r}; remove it from the address"
    message = f"{named}: {problem}"
    raise NotConfiguredError(message)


def _embedded_directory() -> Path:
    named = os.environ.get("JOBHERD_EMBEDDED_DIR") or _file()[0].get("embedded_dir")
    return Path(str(named)).expanduser() if named else working_directory()


def _searched_files() -> str:
    here, name = working_directory(), _file()[1]
    return ", ".join(
        f"{here / each} "
        f"({'has no dsn' if each == name else 'has no [tool.jobherd]' if (here / each).exists() else 'not found'})"
        for each in ((name,) if name else FILES)
    )


def session_of(dsn: str, within: float | None = None) -> dict[str, Any]:
    """Return a client's connection parameters besides `dsn`.

    They are Jobherd's own, and defaults for what the DSN leaves open. If the DSN names several
    hosts, only one that accepts writes is used.

    within: seconds that each host has to answer, rounded up to whole seconds, at least 2, because
        the driver takes whole seconds. A smaller value in the DSN wins. Default None: the value of
        the DSN or the driver.

    >>> session_of("host=a tcp_user_timeout=900")["tcp_user_timeout"]
    '900'
    >>> session_of("host=a connect_timeout=3", 10.0)["connect_timeout"]
    '3'
    """
    given = conninfo_to_dict(dsn)
    open_ = dict(KEPT_ALIVE)
    if "," in str(given.get("hostaddr") or given.get("host") or "") and "PGTARGETSESSIONATTRS" not in os.environ:
        open_["target_session_attrs"] = "read-write"  # the first host that answers may be a standby
    if within is not None:
        own = str(given.get("connect_timeout") or "")
        open_["connect_timeout"] = str(max(2, ceil(within)))
        if not (own.isascii() and own.isdigit() and len(own) < 10 and 0 < int(own) < within):
            given.pop("connect_timeout", None)
    return {name: str(given.get(name) or value) for name, value in open_.items()} | _OURS
