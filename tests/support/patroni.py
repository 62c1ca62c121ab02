"""Runs two PostgreSQL servers under Patroni, with one etcd, on the loopback interface.
with Patroni(synchronous=True) as pair:
        pair.switch_over()          # as an operator does
        pair.kill_leader()          # SIGKILL to Patroni and its postmaster
        pair.wait_for_leader()

Requires Debian's packages `patroni` and `etcd-server`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.ports import spare_port

LIMIT = 240.0
"""Seconds after which a wait fails: the first start creates two servers."""
NAMES = ("one", "two")
TTL = 20
"""Seconds until another node replaces a lost leader."""


class Patroni:
    """The two servers. `dsn` names both."""

    def __init__(self, *, synchronous: bool = True) -> None:
        self._synchronous = synchronous
        self._account = pwd.getpwnam("postgres")
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-patroni-"))
        os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        self._etcd = (spare_port(), spare_port())
        self._ports = {name: spare_port() for name in NAMES}
        self._rest = {name: spare_port() for name in NAMES}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd)
            self._start(
                "etcd", "etcd", "--data-dir", f"{self._folder}/etcd", "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"default={peer}",
            )  # fmt: skip
            for name in NAMES:
                self.start(name)
                self.wait_for_leader()
            self.wait_for_standby()
        except BaseException:
            self.show()
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name, process in reversed(self._processes.items()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
            if process.poll() is None:
                process.kill()
                process.wait()
            if name in NAMES and (pid := self._postmaster(name)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder), "LC_ALL": "C.UTF-8"},
            )  # fmt: skip

    def start(self, name: str) -> None:
        """Start Patroni on a node: the first node creates the database, the second copies it."""
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(self._configuration(name)))
        self._start(name, "patroni", str(file))

    def _configuration(self, name: str) -> dict[str, Any]:
        here = {"listen": f"127.0.0.1:{self._rest[name]}", "connect_address": f"127.0.0.1:{self._rest[name]}"}
        trust = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        dcs = {"ttl": TTL, "loop_wait": 5, "retry_timeout": 5, "synchronous_mode": self._synchronous}
        shared = {"use_pg_rewind": True, "parameters": {"max_connections": 100}}
        programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        return {
            "scope": "jobherd",
            "name": name,
            "restapi": here,
            "etcd3": {"hosts": f"127.0.0.1:{self._etcd[0]}"},
            "bootstrap": {
                "dcs": {**dcs, "postgresql": shared},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
                "pg_hba": trust,
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self._ports[name]}",
                "connect_address": f"127.0.0.1:{self._ports[name]}",
                "data_dir": f"{self._folder}/{name}",
                "bin_dir": str(programs),
                "pgpass": f"{self._folder}/{name}.pgpass",
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator", "password": "unused"},
                    "rewind": {"username": "rewinder", "password": "unused"},
                },
                "parameters": {"unix_socket_directories": str(self._folder)},
            },
        }

    def dsn(self, database: str = "postgres") -> str:
        hosts = ",".join("127.0.0.1" for _ in NAMES)
        ports = ",".join(str(self._ports[name]) for name in NAMES)
        return f"host={hosts} port={ports} user=postgres dbname={database} target_session_attrs=read-write"

    def members(self) -> list[dict[str, Any]]:
        """Return the members of the cluster, as a node reports them; empty while no node answers."""
        for name in NAMES:
            with (
                contextlib.suppress(OSError, ValueError),
                urllib.request.urlopen(f"http://127.0.0.1:{self._rest[name]}/cluster", timeout=5) as answer,
            ):
                return list(json.load(answer)["members"])
        return []

    def leader(self, *, but: str = "") -> str:
        """Return the running leader, except `but`; empty if there is none."""
        return next(
            (
                member["name"]
                for member in self.members()
                if member["role"] == "leader" and member["state"] == "running" and member["name"] != but
            ),
            "",
        )

    def wait_for_leader(self, *, but: str = "") -> str:
        return wait(lambda: self.leader(but=but), "a leader")

    def wait_for_standby(self) -> None:
        """Wait until the other node replicates, synchronously in synchronous mode."""
        role = "sync_standby" if self._synchronous else "replica"
        wait(
            lambda: [
                each for each in self.members() if each["role"] == role and each["state"] in {"running", "streaming"}
            ],
            f"a {role}",
        )

    def switch_over(self) -> str:
        """Request a switchover, as an operator does; return the new leader."""
        old = self.wait_for_leader()
        [new] = set(NAMES) - {old}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._rest[old]}/switchover",
            data=json.dumps({"leader": old, "candidate": new}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert answer.status == 200, answer.read()
        return self.wait_for_leader(but=old)

    def kill_leader(self) -> str:
        """Send SIGKILL to the leader's Patroni and postmaster; return the leader's name."""
        name = self.wait_for_leader()
        postmaster = self._postmaster(name)
        self._processes[name].kill()
        self._processes[name].wait()
        assert postmaster is not None
        os.kill(postmaster, signal.SIGKILL)
        return name

    def _postmaster(self, name: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._folder / name / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
                return pid
        return None

    def show(self) -> None:
        """Print the last lines of all logs."""
        for file in sorted(self._folder.glob("*.log")):
            print(f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-25:]))


def wait(condition: Any, what: str) -> Any:
    """Wait until the condition is true; return its value."""
    until = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {LIMIT:g} s for {what}")
        time.sleep(0.2)
    return found
