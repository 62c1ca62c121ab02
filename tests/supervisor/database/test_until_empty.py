"""What is said of the end of `--until-empty`, however often the database was asked for it."""

from __future__ import annotations

from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.policy.fleet import Fleet, RunState
from jobherd.supervisor.policy.limits import Limits


class DatabaseConnection:
    """One who notes whom to answer, and answers nobody."""

    def __init__(self) -> None:
        self.asked = []

    def ask(self, _name, _parameters, answered):
        self.asked.append(answered)


def test_where_the_database_is_slow_it_is_said_once():
    fleet, db = Fleet(Limits(workers=1, until_empty=True)), DatabaseConnection()
    ends = []

    def empty(now):
        ends.append(now)
        fleet.enter_state(RunState.DRAINING, now)

    until_empty = UntilEmpty(fleet, [], db, served=list, empty=empty)
    for _ in range(3):  # asked once a second for as long as no answer comes
        until_empty._heard([("f",)])
    for answered in db.asked:
        answered([("KEY_MISSING", "2", "7")])
    assert len(ends) == 1
    assert fleet.warnings == ["jobs are left that wait for what is missing here: 2 for a key of JOBHERD_KEYS (job 7)"]
    until_empty._heard([("f",)])
    assert len(db.asked) == 3
