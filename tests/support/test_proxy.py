"""The proxy that loses answers loses each with its connection, or a test waits for a silent line instead of meeting a broken one."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.proxy import Proxy


@pytest.mark.parametrize("statement", ["SELECT 1", "BEGIN"])
@pytest.mark.timeout(60)
def test_a_lost_answer_takes_its_connection_along(empty_database: str, statement: str):
    with Proxy(empty_database) as proxy, psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.swallow()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(statement)
        proxy.wait()
