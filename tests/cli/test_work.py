"""`jobherd work` reports invalid settings before it forks anything."""

from __future__ import annotations

import pytest

from tests.cli.shell import jobherd

HANDLER = "from jobherd import handler\n\n@handler('t:noop')\ndef noop() -> None: ...\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "handlers").mkdir(mode=0o755)
    (tmp_path / "handlers" / "jobs.py").write_text(HANDLER)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no gateway is named: give --gateway HOST:PORT, or set JOBHERD_GATEWAY_ADDRESSES"),
        (("--gateway", ":9091"), "gateway_addresses = ':9091' (from --gateway): must be a list of HOST:PORT"),
        (("--gateway", "a", "--gateway-token-file", "none"), "--gateway-token-file none (from --gateway-token-file) cannot be read"),
        (("--gateway", "a", "--handlers", "nowhere"), "handlers: there is no folder, file or module 'nowhere'"),
    ],
)  # fmt: skip
def test_work_with_invalid_settings_exits_with_78_and_the_reason(folder, words, said):
    answer = jobherd("work", *words, cwd=folder)
    assert answer.code == 78
    assert said in answer.err


def test_work_rejects_flags_for_a_database(folder):
    for words in (("--dsn", "x"), ("--http", "off"), ("--budget", "x=1")):
        answer = jobherd("work", "--gateway", "a", *words, cwd=folder)
        assert answer.code == 2
        assert f"unknown option {words[0]}" in answer.err
