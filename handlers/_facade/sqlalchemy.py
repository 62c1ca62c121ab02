"""Jobherd and SQLAlchemy's migrations: Alembic ignores Jobherd's schema, or creates it.

`connection=` takes sessions and connections of SQLAlchemy without this module. SQLAlchemy and Alembic
must not be imported here: `include_name` is called by Alembic, `upgrade` with a connection of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd.handlers._enqueue.default import schema_or_default
from jobherd.handlers._enqueue.driver_connection import driver_of
from jobherd.sql.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._enqueue.driver_connection import SqlalchemyConnection

__all__ = ["include_name", "upgrade"]


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """Return False for Jobherd's schema, so that Alembic's autogenerate does not drop its tables.

    Args:
        name: name of the schema, table, column, index or constraint.
        type_: "schema", "table", "column", "index", "unique_constraint" or "foreign_key_constraint".
        parent_names: names of what it is in, such as `schema_name`.

    Example:
        >>> context.configure(include_schemas=True, include_name=include_name)  # doctest: +SKIP
    """
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    return schema != schema_or_default()


def upgrade(connection: SqlalchemyConnection, *, schema: str | None = None) -> int:
    """Create or upgrade Jobherd's schema in the transaction of `connection`, and return the number of migrations.

    Args:
        connection: SQLAlchemy's connection, on psycopg 3.
        schema: Jobherd's schema. Default: the one set by `configure`, or "jobherd".

    Example:
        >>> upgrade(op.get_bind())  # doctest: +SKIP
    """
    driver = driver_of(connection)
    driver.execute("")  # begins the transaction, which migrate() would otherwise begin and commit
    return migrate(driver, schema=schema_or_default(schema))
