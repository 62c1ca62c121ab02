"""`check` and `run` reject a gateway that every client could use, before anything starts."""

from __future__ import annotations

import textwrap

import pytest

from tests.cli.shell import jobherd


@pytest.fixture
def handlers(tmp_path):
    (tmp_path / "mail.py").write_text(
        textwrap.dedent("""
        from jobherd import handler

        @handler("mail:receipt")
        def receipt() -> None: ...
        """)
    )
    return tmp_path


@pytest.mark.parametrize(("command", "code"), [("check", 1), ("run", 78)])
def test_gateway_that_other_hosts_can_reach_requires_tls_and_tokens(handlers, command, code):
    answer = jobherd(command, "--handlers", handlers, "--gateway", ":9091", "--dsn", "host=/nowhere", cwd=handlers)
    assert answer.code == code, answer
    assert "gateway = 0.0.0.0:9091 (from --gateway) can be reached from other hosts without TLS" in answer.err
    assert "every client could connect: set JOBHERD_GATEWAY_TOKEN" in answer.err


def test_gateway_on_localhost_requires_neither_tls_nor_tokens(handlers):
    answer = jobherd("check", "--handlers", handlers, "--gateway", "localhost", cwd=handlers)
    assert answer.code == 0, answer
    assert jobherd("check", "--handlers", handlers, "--gateway", "off", cwd=handlers).code == 0
