"""What a supervisor has loaded when it is built."""

from __future__ import annotations

import pytest

from jobherd import sql


@pytest.mark.parametrize("supervisor", ["never_read_before"], indirect=True)
def test_built_supervisor_has_loaded_its_sql_statements(supervisor, monkeypatch):
    """Later, the process may have reached its limit of open files: a supervisor died of that."""
    monkeypatch.setattr(sql, "files", lambda *_: pytest.fail("a statement is read now"))
    for name in (
        "wake/disable_notify",
        "recover/terminate_child_sessions",
        "recover/unregister_supervisor",
        "control/find_cancels",
    ):
        assert sql.numbered(name, supervisor.settings.now.schema)[0]
