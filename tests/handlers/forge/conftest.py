"""A database with the forge's tables, the default client connected to it, and a method that runs its ready jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobherd import configure
from jobherd.handlers._enqueue import default
from jobherd.handlers._load.registry import load
from jobherd.handlers.forge import _database
from jobherd.handlers.forge._repository import init_repository
from jobherd.sql.migrate import migrate
from jobherd.testing import Ran, run_payload
from tests.support.lending import Lending
from tests.support.repositories import Step, push

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Cluster

HANDLERS = load(["jobherd.handlers.forge"]).kinds


@dataclass
class Forge:
    """The database of a test, and its jobs."""

    dsn: str
    folder: Path
    connection: psycopg.Connection[Any]
    ran: list[tuple[str, Any, Ran]] = field(default_factory=list)
    """The jobs that `run_waiting` has run: kind, payload and result."""

    def rows(self, statement: str, *parameters: object) -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, *parameters: object) -> Any:
        (row,) = self.rows(statement, *parameters)
        return next(iter(row.values())) if len(row) == 1 else row

    def repository(self, name: str = "project.git") -> Path:
        """Make a bare repository with the hook."""
        return Path(init_repository(str(self.folder / name), dsn=self.dsn, schema="jobherd"))

    def push(self, source: Path, remote: Path, step: Step) -> str:
        return push(source, remote, *step.refs, force=step.force)

    def waiting(self) -> list[dict[str, Any]]:
        return self.rows("SELECT id, kind, payload FROM jobherd.ready ORDER BY id")

    def run_waiting(
        self, *, backwards: bool = False, kinds: tuple[str, ...] = (), expect: str | None = "ok"
    ) -> list[tuple[str, Any, Ran]]:
        """Run the ready jobs, and those that they enqueue, each once, as a worker would.

        `backwards`: latest first.
        """
        first = len(self.ran)
        while jobs := [job for job in self.waiting() if not kinds or job["kind"] in kinds]:
            job = jobs[-1 if backwards else 0]
            self.rows("DELETE FROM jobherd.ready WHERE id = %s", job["id"])
            ran = run_payload(HANDLERS[job["kind"]], job["payload"], id=job["id"])
            assert expect is None or ran.outcome.label == expect, f"{job}: {ran}"
            self.ran.append((job["kind"], job["payload"], ran))
        return self.ran[first:]


@pytest.fixture(scope="session")
def forges(cluster: Cluster, template: str) -> Lending:
    """Databases that have the forge's tables."""
    name = cluster.create(template)
    with psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        migrate(conn, area="forge")
    return Lending(cluster, name)


@pytest.fixture
def forge(forges: Lending, tmp_path: Path) -> Iterator[Forge]:
    """A fresh database, used by the handlers in this process."""
    before = default._chosen
    with forges.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        client = configure(dsn)
        try:
            yield Forge(dsn, tmp_path, connection)
        finally:
            default._chosen = before
            client.close()
            _database.close()
