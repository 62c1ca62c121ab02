"""What a supervisor has once it is built."""

from __future__ import annotations

import pytest

from jobherd import sql


@pytest.mark.parametrize("supervisor", ["never_read_before"], indirect=True)
def test_it_reads_no_statement_later(supervisor, monkeypatch):
    """There may be no file left to be opened: a parent died of that, in the middle of its work."""
    monkeypatch.setattr(sql, "files", lambda *_: pytest.fail("a statement is read now"))
    for name in (
        "wake/disable_notify",
        "recover/terminate_child_sessions",
        "recover/unregister_supervisor",
        "control/find_cancels",
    ):
        assert sql.numbered(name, supervisor.settings.now.schema)[0]
