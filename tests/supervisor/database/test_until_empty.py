"""What is said of the end of `--until-empty`, however often the database was asked for it."""

from __future__ import annotations

from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.policy.fleet import Fleet
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.live import LiveSettings


class DatabaseConnection:
    """One who notes whom to answer, and answers nobody."""

    def __init__(self) -> None:
        self.asked = []

    def ask(self, _name, _parameters, answered):
        self.asked.append(answered)


def test_where_the_database_is_slow_it_is_said_once():
    fleet, db = Fleet(Limits(workers=1, until_empty=True)), DatabaseConnection()
    until_empty = UntilEmpty(fleet, [], db, LiveSettings(Settings()))
    for _ in range(3):  # asked once a second for as long as no answer comes
        until_empty._found([("f",)])
    for answered in db.asked:
        answered([("KEY_MISSING", "2", "7")])
    assert until_empty.nothing_left
    assert fleet.warnings == ["jobs are left that wait for what is missing here: 2 for a key of JOBHERD_KEYS (job 7)"]
    until_empty._found([("f",)])
    assert len(db.asked) == 3
