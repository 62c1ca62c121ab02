"""The proxy ends the connection of a lost answer: otherwise a test would wait instead of seeing an error."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.proxy import Proxy


@pytest.mark.parametrize("statement", ["SELECT 1", "BEGIN"])
@pytest.mark.timeout(60)
def test_lost_answer_ends_its_connection(empty_database: str, statement: str):
    with Proxy(empty_database) as proxy, psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.swallow()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(statement)
        proxy.wait()
