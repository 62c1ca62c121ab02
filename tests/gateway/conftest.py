"""One supervisor with a gateway for the tests that do not change it, and a client process for each test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.gateway.remote import Client
from tests.support.fleet import AUDIT, Fleet, Stage
from tests.support.ground import AHEAD
from tests.support.lending import prepare
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway.remote import Stream
    from tests.support.lending import Lending
    from tests.support.postgres import Cluster

QUEUE = "remote"
"""The queue of the jobs for remote workers: the local worker serves another one."""
TOKENS = {name: f"{name}-token-{'x' * 20}" for name in ("all", "other", "some", "producer")}
ACCESS = f"""
[principals.all]
token_sha256 = "{hashlib.sha256(TOKENS["all"].encode()).hexdigest()}"
[principals.other]
token_sha256 = "{hashlib.sha256(TOKENS["other"].encode()).hexdigest()}"
[principals.some]
token_sha256 = "{hashlib.sha256(TOKENS["some"].encode()).hexdigest()}"
kinds = ["some:*", "one"]
queues = ["{QUEUE}"]
tenants = ["acme"]
[principals.producer]
token_sha256 = "{hashlib.sha256(TOKENS["producer"].encode()).hexdigest()}"
role = "enqueue"
"""


@dataclass
class Served:
    """A supervisor with a gateway, and its database."""

    stage: Stage
    fleet: Fleet
    where: str

    def enqueue(self, kind: str, payload: str = "{}", **options: object) -> int:
        return self.stage.enqueue(kind, payload, **{"queue": QUEUE, **options})


def serve(stage: Stage, where: str | None = None, **settings: object) -> Served:
    """Start a supervisor with a gateway and wait until it serves."""
    place = where or f"127.0.0.1:{spare_port()}"
    settings = {"workers": 1, "queues": "local", "gateway": place, "poll": "30s", **settings}
    fleet = stage.run_fleet(**settings)
    fleet.wait_log(f"gateway on {place}")
    fleet.wait_log("gateway is ready")
    return Served(stage, fleet, place)


@pytest.fixture(scope="session")
def staged(cluster: Cluster, template: str) -> Lending:
    return prepare(cluster, template, AUDIT, f"SELECT * FROM jobherd.keep_partitions({AHEAD}, NULL)")


@pytest.fixture
def stage(staged: Lending, tmp_path: Path) -> Iterator[Stage]:
    with staged.database() as dsn, Stage(dsn, tmp_path, audit=False) as standing:
        yield standing
        standing.show()


@pytest.fixture(scope="module")
def served(staged: Lending, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A supervisor that the tests of a module share. Each test uses its own kinds."""
    folder = tmp_path_factory.mktemp("served")
    access = folder / "access.toml"
    access.write_text(ACCESS)
    with staged.database() as dsn, Stage(dsn, folder, audit=False) as stage:
        yield serve(stage, gateway_access=access)
        stage.show()


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as process:
        yield process


@pytest.fixture
def worker(served: Served, client: Client) -> Stream:
    """A stream with a session that has all permissions."""
    stream = client.stream(served.where)
    stream.hello(token=TOKENS["all"], worker_id="w1")
    return stream
