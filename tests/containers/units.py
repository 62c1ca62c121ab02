"""deploy/jobherd.service under a real systemd: `make units`. One check per row of the table in docs/how-to/operate/deploy.md.

systemd is process 1 of a container, which also has Debian's PostgreSQL. Needs root, and a machine
that can start dockerd.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.containers import images
from tests.containers.checks import Checks, wait
from tests.containers.engine import Engine

NAME = "machine"
ENDED = ("completed", "failed", "cancelled", "expired")
DATABASE = """
systemctl start postgresql
until pg_isready --quiet; do sleep 0.2; done
runuser -u postgres -- createuser jobherd
runuser -u postgres -- createdb jobs --owner jobherd
printf 'JOBHERD_DSN=postgresql:///jobs?host=/run/postgresql\\nJOBHERD_HANDLERS=/srv/jobherd/handlers.d\\nJOBHERD_WORKERS=2\\n' > /etc/jobherd/jobherd.env
chmod 600 /etc/jobherd/jobherd.env
chmod -R a+rX /srv/jobherd
"""


class Machine:
    """The container whose first process is systemd."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.docker(
            "run", "--detach", "--name", NAME, "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE",
            "--security-opt", "seccomp=unconfined", "--tmpfs", "/run", "--tmpfs", "/run/lock",
            "--volume", "/sys/fs/cgroup:/sys/fs/cgroup", "--env", "container=docker", images.MACHINE,
        )  # fmt: skip

    def sh(self, script: str, *, check: bool = True) -> str:
        found = self._engine.docker("exec", NAME, "/bin/sh", "-ec" if check else "-c", script, check=check)
        return (found.stdout + found.stderr).strip()

    def copy(self, source: Path, target: str) -> None:
        self._engine.docker("cp", source, f"{NAME}:{target}")

    def unit(self, field: str) -> str:
        return self.sh(f"systemctl show --value --property {field} jobherd")

    def active(self, *, main: str = "") -> str:
        """Wait until the unit is active and its main process is not `main`. Return the pid of that process."""
        wait(lambda: self.unit("ActiveState") == "active" and self.unit("MainPID") != main, "an active unit")
        return self.unit("MainPID")

    def ask(self, statement: str) -> str:
        return self.sh(f"runuser -u postgres -- psql -X -At -q -d jobs -c {json.dumps(statement)}")

    def enqueue(self, kind: str, payload: str = "{}") -> int:
        quoted = payload.replace('"', '\\"')
        return int(
            self.sh(
                f"runuser -u postgres -- psql -X -At -q -d jobs -c \"SELECT jobherd.enqueue('{kind}', '{quoted}')\""
            )
        )

    def job(self, number: int) -> dict[str, Any]:
        return json.loads(
            self.ask(
                f"SELECT to_json(j) FROM (SELECT state, attempts, crashes, result, error FROM jobherd.jobs WHERE id = {number}) AS j"
            )
        )

    def running(self, number: int) -> None:
        wait(lambda: self.job(number)["state"] == "running", f"job {number} to run")

    def ended(self, number: int) -> dict[str, Any]:
        wait(lambda: self.job(number)["state"] in ENDED, f"job {number} to end")
        return self.job(number)


def main() -> int:
    checks = Checks("deploy/jobherd.service under systemd")
    with Engine() as engine:
        images.make_base(engine)
        images.make_product(engine)
        images.make_machine(engine)
        machine = Machine(engine)
        try:
            prepare(checks, machine)
            notify(checks, machine)
            reload(checks, machine)
            drain(checks, machine)
            memory(checks, machine)
            killed(checks, machine)
            watchdog(checks, machine)
            misfit(checks, machine)
        except BaseException:
            print(
                machine.sh("systemctl status jobherd; journalctl --no-pager --lines 60", check=False), file=sys.stderr
            )
            raise
        finally:
            engine.docker("rm", "--force", NAME, check=False)
    return checks.end()


def prepare(checks: Checks, machine: Machine) -> None:
    state = wait(
        lambda: (found := machine.sh("systemctl is-system-running", check=False)) in {"running", "degraded"} and found,
        "systemd to be up",
    )
    checks.holds("systemd is process 1", "systemd" in machine.sh("cat /proc/1/comm"), state)
    machine.copy(Path(__file__).with_name("handlers.py"), "/srv/jobherd/handlers.d/seen.py")
    machine.sh(DATABASE)
    found = machine.sh("systemd-analyze verify /etc/systemd/system/jobherd.service", check=False)
    checks.holds("systemd-analyze verify prints nothing about jobherd", "jobherd" not in found, found)
    exposed = machine.sh("systemd-analyze --no-pager security jobherd | tail -1", check=False)
    checks.holds("systemd-analyze security: OK", "OK" in exposed, exposed.partition(":")[2].strip())


def notify(checks: Checks, machine: Machine) -> None:
    begun = time.monotonic()
    machine.sh("systemctl start jobherd")
    took = time.monotonic() - begun
    state, text = machine.unit("ActiveState"), machine.unit("StatusText")
    checks.holds(
        "Type=notify: active once a worker is ready, with a status text",
        state == "active" and text,
        f"{took:.1f} s, {text!r}",
    )
    found = machine.ended(machine.enqueue("seen:parent"))
    main = machine.unit("MainPID")
    checks.holds("a job runs in a child of the main process", str(found["result"]) == main, found["state"])


def reload(checks: Checks, machine: Machine) -> None:
    main = machine.unit("MainPID")
    long = machine.enqueue("seen:sleep", '{"seconds": 6}')
    machine.running(long)
    machine.sh("sed -i 's/VERSION = 1/VERSION = 2/' /srv/jobherd/handlers.d/seen.py")
    machine.sh("systemctl reload jobherd")
    wait(lambda: machine.ended(machine.enqueue("seen:version"))["result"] == 2, "the new handlers")
    found = machine.ended(long)
    checks.holds(
        "ExecReload=: new handlers, the same main process, a running job continues",
        machine.unit("MainPID") == main and (found["state"], found["attempts"]) == ("completed", 1),
        found,
    )


def drain(checks: Checks, machine: Machine) -> None:
    job = machine.enqueue("seen:sleep", '{"seconds": 5}')
    machine.running(job)
    begun = time.monotonic()
    machine.sh("systemctl stop jobherd")
    took = time.monotonic() - begun
    found, state, result = machine.job(job), machine.unit("ActiveState"), machine.unit("Result")
    checks.holds(
        "KillMode=mixed, TimeoutStopSec=: systemctl stop drains",
        (found["state"], found["attempts"], state, result) == ("completed", 1, "inactive", "success"),
        f"{found['state']}, attempt {found['attempts']}, {took:.1f} s for a 5-s job",
    )


def memory(checks: Checks, machine: Machine) -> None:
    machine.sh(
        "mkdir -p /etc/systemd/system/jobherd.service.d && printf '[Service]\\nMemoryMax=200M\\n' > /etc/systemd/system/jobherd.service.d/memory.conf"
    )
    machine.sh("systemctl daemon-reload && systemctl start jobherd")
    main = machine.unit("MainPID")
    found = machine.ended(machine.enqueue("seen:eat", '{"megabytes": 600}'))
    error = found["error"] or ""
    checks.holds(
        "MemoryMax=200M: the job is killed and explained", "out-of-memory killer" in error and "200 MiB" in error, error
    )
    state, now = machine.unit("ActiveState"), machine.unit("MainPID")
    after = machine.ended(machine.enqueue("seen:parent"))["state"]
    checks.holds(
        "OOMPolicy=continue: the unit stays active, the next job runs",
        (state, now, after) == ("active", main, "completed"),
        state,
    )


def killed(checks: Checks, machine: Machine) -> None:
    main, before = machine.unit("MainPID"), int(machine.unit("NRestarts"))
    job = machine.enqueue("seen:sleep", '{"seconds": 3}')
    machine.running(job)
    machine.sh("kill -9 " + main)
    machine.active(main=main)
    found, restarts = machine.ended(job), int(machine.unit("NRestarts")) - before
    checks.holds(
        "Restart=on-failure: kill -9 of the main process; the job runs again",
        (found["state"], restarts) == ("completed", 1),
        found,
    )


def watchdog(checks: Checks, machine: Machine) -> None:
    main, before = machine.unit("MainPID"), int(machine.unit("NRestarts"))
    begun = time.monotonic()
    machine.sh("kill -STOP " + main)
    machine.active(main=main)
    took, restarts = time.monotonic() - begun, int(machine.unit("NRestarts")) - before
    checks.holds("WatchdogSec=30: a supervisor whose loop hangs is restarted", restarts == 1, f"{took:.0f} s")


def misfit(checks: Checks, machine: Machine) -> None:
    machine.sh("systemctl stop jobherd && systemctl reset-failed jobherd || true")
    machine.sh("echo 'import nothing_of_that_name' > /srv/jobherd/handlers.d/broken.py")
    machine.sh("systemctl start jobherd", check=False)
    wait(lambda: machine.unit("ActiveState") == "failed", "the unit to fail")
    code, restarts = machine.unit("ExecMainStatus"), machine.unit("NRestarts")
    named = "nothing_of_that_name" in machine.sh("journalctl --no-pager --unit jobherd --lines 50")
    checks.holds(
        "RestartPreventExitStatus=2 78: a broken handler stops the unit, with the reason in the journal",
        (code, restarts, named) == ("78", "0", True),
        f"exit {code}, NRestarts {restarts}",
    )


if __name__ == "__main__":
    sys.exit(main())
