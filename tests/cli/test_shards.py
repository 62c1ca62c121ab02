"""Commands over several databases."""

from __future__ import annotations

import pytest

from tests.cli.shell import jobherd


def test_migrate_gives_a_database_the_ids_of_its_shard(cluster):
    with cluster.database() as dsn:
        made = jobherd("migrate", "--shard", "2/4", dsn=dsn)
        assert made.out.splitlines()[-1] == "shard 2 of 4: ids from 20000000000000"
        assert jobherd("enqueue", "a:b", "{}", dsn=dsn).out == "20000000000000\n"
        again = jobherd("migrate", "--shard", "2/5", dsn=dsn)  # a fifth database has come
        assert again.out == "up to date\nshard 2 of 5: ids from 20000000000000, as before\n"
        other = jobherd("migrate", "--shard", "3/4", dsn=dsn)
        assert other.code == 2
        assert "this database is shard 2 and has given ids of it: it cannot become shard 3" in other.err
        assert jobherd("enqueue", "a:b", "{}", dsn=dsn).out == "20000000000001\n"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "2/900", "x/y", "2/4/6", "-1/4"])
def test_a_shard_has_a_number_and_a_total(text):
    answer = jobherd("migrate", f"--shard={text}", dsn="dbname=x")
    assert answer.code == 2
    assert f"{text!r} is not a shard: write 2/4" in answer.err
