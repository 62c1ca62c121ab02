"""Tests of the simulated network: if it did not cause its faults, tests over it would prove nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.network import Network

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def network(empty_database: str) -> Iterator[Network]:
    with Network(empty_database) as network:
        yield network


def connect(network: Network, name: str) -> psycopg.Connection[tuple[int]]:
    return psycopg.connect(network.dsn, application_name=name, autocommit=True)


def test_network_relays_and_lists_the_sessions(network: Network):
    with connect(network, "one") as one, connect(network, "two"):
        assert one.execute("SELECT 1").fetchone() == (1,)
        assert sorted(network.names()) == ["one", "two"]
    network.wait("closed", "one")
    network.wait("closed", "two")


def test_cut_resets_only_the_matching_sessions(network: Network):
    with connect(network, "one") as one, connect(network, "two") as two:
        assert network.cut("o*") == 1
        with pytest.raises(psycopg.OperationalError):
            one.execute("SELECT 1")
        assert two.execute("SELECT 1").fetchone() == (1,)


def test_data_delayed_by_a_blackhole_arrives_after_heal(network: Network):
    with connect(network, "one") as one, connect(network, "two") as two:
        network.blackhole("one")
        one.pgconn.send_query(b"SELECT 7")
        one.pgconn.flush()
        assert two.execute("SELECT 1").fetchone() == (1,)
        assert one.pgconn.is_busy()
        network.heal()
        assert one.pgconn.get_result().get_value(0, 0) == b"7"
        one.pgconn.get_result()


@pytest.mark.parametrize(("where", "rows"), [("before", 0), ("torn", 0), ("answered", 1)])
def test_armed_word_cuts_before_within_or_after_the_statement(
    network: Network, empty_database: str, where: str, rows: int
):
    with connect(network, "one") as one, psycopg.connect(empty_database, autocommit=True) as direct:
        direct.execute("CREATE TABLE t (word text)")
        network.arm("one", "magic", where=where)
        with pytest.raises(psycopg.OperationalError):
            one.execute("INSERT INTO t VALUES ('magic')")
        network.wait_hit()
        direct.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'one'")
        assert direct.execute("SELECT count(*) FROM t").fetchone() == (rows,)


def test_refused_word_is_answered_with_an_error_until_heal(network: Network):
    with connect(network, "one") as one, connect(network, "two") as two:
        network.refuse("one", "magic")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="by the network"):
            one.execute("SELECT 'magic', %s", [1])
        assert one.execute("SELECT 1").fetchone() == two.execute("SELECT 1 AS magic").fetchone() == (1,)
        network.wait("refused", "one")
        network.heal()
        assert one.execute("SELECT 1 AS magic").fetchone() == (1,)


def test_slow_network_delivers_all_bytes(network: Network):
    network.slow("one", latency=0.001, crumbs=True)
    with connect(network, "one") as one:
        assert one.execute("SELECT repeat('x', 2000)").fetchone() == ("x" * 2000,)
