"""When `--until-empty` ends, and the warning about jobs that remain."""

from __future__ import annotations

from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.policy.child_kinds import GATEWAY
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.live import LiveSettings
from jobherd.workers.ipc.pipes import Ready
from jobherd.workers.ipc.status_board import StatusBoard


class DatabaseConnection:
    """Records the callbacks of requests and never answers."""

    def __init__(self) -> None:
        self.asked = []

    def ask(self, _name, _parameters, answered):
        self.asked.append(answered)


def test_slow_database_causes_only_one_warning_about_remaining_jobs():
    slot_table, db = SlotTable(Limits(workers=1)), DatabaseConnection()
    until_empty = UntilEmpty(slot_table, [], db, LiveSettings(Settings(until_empty=True)))
    for _ in range(3):  # the query is repeated each second while no answer arrives
        until_empty._found([("f",)])
    for answered in db.asked:
        answered([("KEY_MISSING", "2", "7")])
    assert until_empty.nothing_left
    assert slot_table.warnings == [
        "jobs remain that wait for what this supervisor does not have: 2 for a key of JOBHERD_KEYS (job 7)"
    ]
    until_empty._found([("f",)])
    assert len(db.asked) == 3


def test_gateway_counts_as_idle_only_when_ready_without_jobs_at_remote_workers():
    slot_table, db = SlotTable(Limits(workers=0, max_workers=1, has_gateway=True)), DatabaseConnection()
    boards = [StatusBoard(f"test-{slot.number}") for slot in slot_table.slots]
    until_empty = UntilEmpty(slot_table, boards, db, LiveSettings(Settings(until_empty=True)))
    until_empty.step(1.0)
    assert db.asked == [], "the gateway has not started"
    gateway = next(slot for slot in slot_table.slots if slot.kind is GATEWAY)
    slot_table.on_fork(gateway, pid=1, incarnation=1, now=1.0, started=0, jitter=0.0)
    until_empty.step(2.0)
    assert db.asked == [], "the gateway is not ready"
    slot_table.on_message(gateway, Ready(0, 0), 3.0)
    boards[gateway.number].set_held(2)
    until_empty.step(3.0)
    assert db.asked == [], "remote workers have two jobs"
    boards[gateway.number].set_held(0)
    for now, idle in ((4.0, False), (6.0, True)):
        boards[gateway.number].set_idle(idle=idle)
        until_empty.step(now)
    assert len(db.asked) == 2
