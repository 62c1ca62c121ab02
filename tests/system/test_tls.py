"""A supervisor whose database accepts only TLS. Longer: python -m tests.faults.tls."""

from __future__ import annotations

import psycopg
import pytest

from tests.faults.tls import fork_often
from tests.support.secure import can_speak_tls, secured

pytestmark = pytest.mark.skipif(not can_speak_tls(), reason="the PostgreSQL under test has no TLS: use make test-pg15")


@pytest.mark.server
@pytest.mark.timeout(600)
def test_tls_sessions_of_the_supervisor_survive_forks_and_each_worker_has_its_own(tmp_path):
    with secured() as (_, dsn):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(psycopg.conninfo.make_conninfo(dsn, sslmode="disable"))
        seen = fork_often(dsn, tmp_path, forks=8)
    assert seen["forks"] >= 8
