"""Remote workers do not wait for a transaction that another session keeps open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.gateway.conftest import TOKENS
from tests.gateway.remote import done

if TYPE_CHECKING:
    from tests.gateway.conftest import Served
    from tests.gateway.remote import Client, Stream


def test_worker_declaring_a_kind_that_an_open_transaction_changes_blocks_no_other_worker(
    served: Served, worker: Stream, client: Client
):
    with psycopg.connect(served.stage.dsn) as operator:
        operator.execute("SELECT jobherd.pause(kind => 'open:limited')")
        second = client.stream(served.where)
        second.hello(token=TOKENS["all"], worker_id="w2", kinds=[{"kind": "open:limited", "max_running": 2}])
        job = served.enqueue("open:other")
        worker.end(done(worker.task("open:other")))
        assert served.stage.state(job) == "completed"
        operator.rollback()
