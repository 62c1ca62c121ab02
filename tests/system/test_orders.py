"""Fleet commands to a running supervisor, by SQL and from the command line.

They are: report, add a worker, remove one, reload, and drain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.shell import jobherd

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

TELL = """
CREATE TRIGGER t_tell AFTER INSERT OR UPDATE ON jobherd.fleet_commands FOR EACH STATEMENT EXECUTE FUNCTION t_tell()
"""


def test_supervisor_executes_fleet_commands_and_reports_its_state(stage: Stage, gate: Gate):
    stage.run(TELL)
    fleet = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "long"}')
    arrival = gate.wait_arrival("long")
    number = stage.call("SELECT id FROM jobherd.supervisors")

    def order(name: str, arguments: str = "{}") -> tuple[dict, str | None]:
        given = stage.call("SELECT jobherd.send_fleet_command(%s, %s, %s, 'anna')", number, name, arguments)
        done = "SELECT answer, error FROM jobherd.fleet_commands WHERE id = %s AND done_at IS NOT NULL"
        return stage.wait(lambda: stage.run(done, given), f"the answer to {name}")[0]

    def told():
        assert order("report") == ({}, None)
        facts = stage.call("SELECT facts FROM jobherd.supervisors")
        return None if facts["children"][0]["state"] == "computing" else facts

    facts = stage.wait(told, "a report that shows the worker blocked at the gate")
    worker = facts["children"][0]
    assert (worker["pid"], worker["state"], worker["job"], worker["job_kind"]) == (
        arrival.pid,
        "waiting",
        job,
        "t:gate",
    )
    states = {child["kind"]: child["state"] for child in facts["children"]}
    # The maintenance process has its own schedule: it may be busy at that moment.
    assert states in [
        {"worker": "waiting", "maintenance": maintenance} for maintenance in ("idle", "computing", "waiting")
    ]

    assert order("dance")[1].startswith("it does not have the fleet command 'dance'")
    assert order("add") == ({"workers": 2, "running": 1}, None)
    fleet.wait_ready(2)
    assert order("remove") == ({"workers": 1, "running": 1}, None)
    assert order("reload") == ({"workers": 1, "running": 1}, None)
    fleet.wait_log("reloaded: every worker runs the new code")
    assert order("report") == ({}, None)  # a listing that gets no newer report in time shows this one

    # A listing does not request a report that is younger than a second, and a fast machine gets here within
    # that time.
    stage.run("UPDATE jobherd.fleet_commands SET asked_at = asked_at - interval '2 s' WHERE name = 'report'")
    listed = jobherd("fleet", dsn=stage.dsn)
    assert listed.code == 0, listed
    assert f"supervisor {number}  " in listed.out
    assert f"t:gate #{job} for" in listed.out
    assert "leaving" in listed.out, "after the reload, the old worker exits once its job has ended"

    said = jobherd("fleet", "drain", number, 999, "--reason", "moving", dsn=stage.dsn)
    assert said.code == 1, said
    assert said.lines == [
        f"supervisor {number}: it drains; 1 job runs, and it exits when no job runs any more",
        "supervisor 999: is not there: it has exited, or its lease has expired",
    ]
    assert order("drain") == ({"workers": 1, "running": 1}, None), "a second drain does not speed up the first"
    assert order("add")[1] == "it is exiting already: nothing can be changed any more"
    arrival.open("well")
    assert fleet.wait_exit() == 0
    assert (stage.state(job), stage.job(job)["result"]) == ("completed", "well")
    noted = stage.run(
        "SELECT action, reason FROM jobherd.audit WHERE target ->> 'supervisor' = %s ORDER BY id", str(number)
    )
    assert [action for action, _ in noted] == ["dance", "add", "remove", "reload", "drain", "drain", "add"]
    assert ("drain", "moving") in noted
    assert "@" in stage.call("SELECT actor FROM jobherd.audit WHERE reason = 'moving'"), (
        "the audit entry names user and host"
    )
