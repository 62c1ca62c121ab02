"""Orders to a running supervisor, by SQL and from the command line.

What it says of itself, one worker more and fewer, new code, and the end.
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


def test_a_supervisor_does_what_it_is_ordered_and_says_what_it_is_at(stage: Stage, gate: Gate):
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

    facts = stage.wait(told, "its worker to be seen asleep at the gate")
    worker = facts["children"][0]
    assert (worker["pid"], worker["state"], worker["job"], worker["job_kind"]) == (
        arrival.pid,
        "waiting",
        job,
        "t:gate",
    )
    states = {child["kind"]: child["state"] for child in facts["children"]}
    # A maintenance process has its own times: at that moment it may well be at work.
    assert states in [
        {"worker": "waiting", "maintenance": maintenance} for maintenance in ("idle", "computing", "waiting")
    ]

    assert order("dance")[1].startswith("it does not know the order 'dance'")
    assert order("add") == ({"workers": 2, "running": 1}, None)
    fleet.wait_ready(2)
    assert order("remove") == ({"workers": 1, "running": 1}, None)
    assert order("reload") == ({"workers": 1, "running": 1}, None)
    fleet.wait_log("reloaded: every worker runs the new code")
    assert order("report") == ({}, None)  # which a listing shows that waits in vain for a newer one

    # What was said within the last second is not asked for again, and a quick machine is here
    # within it.
    stage.run("UPDATE jobherd.fleet_commands SET asked_at = asked_at - interval '2 s' WHERE name = 'report'")
    listed = jobherd("fleet", dsn=stage.dsn)
    assert listed.code == 0, listed
    assert f"supervisor {number}  " in listed.out
    assert f"t:gate #{job} for" in listed.out
    assert "leaving" in listed.out, "it was reloaded, and its worker goes once the job has ended"

    said = jobherd("fleet", "drain", number, 999, "--reason", "moving", dsn=stage.dsn)
    assert said.code == 1, said
    assert said.lines == [
        f"supervisor {number}: it drains; 1 job runs, and it leaves when no job runs any more",
        "supervisor 999: is not there: it has left, or its lease has lapsed",
    ]
    assert order("drain") == ({"workers": 1, "running": 1}, None), "a second one does not hurry it"
    assert order("add")[1] == "it is leaving already: nothing can be changed any more"
    arrival.open("well")
    assert fleet.wait_exit() == 0
    assert (stage.state(job), stage.job(job)["result"]) == ("completed", "well")
    noted = stage.run(
        "SELECT action, reason FROM jobherd.audit WHERE target ->> 'supervisor' = %s ORDER BY id", str(number)
    )
    assert [action for action, _ in noted] == ["dance", "add", "remove", "reload", "drain", "drain", "add"]
    assert ("drain", "moving") in noted
    assert "@" in stage.call("SELECT actor FROM jobherd.audit WHERE reason = 'moving'"), "who sat where"
