"""A separate docker daemon that leaves nothing behind.

    with Engine() as engine:
        engine.docker("run", "--rm", "image")

Its data, its socket and its containerd are in a temporary folder. It writes no rules into the
kernel's tables (`--iptables=false`), so only its bridges and control groups are left to remove.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.containers.checks import wait

PROGRAM = next((path for path in ("/usr/bin/docker", "/usr/local/bin/docker") if os.access(path, os.X_OK)), "docker")
GROUPS = Path("/sys/fs/cgroup")


class Engine:
    """One dockerd."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobherd-docker-"))
        self.environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_BUILDKIT": "0",  # Debian's package has no buildx
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }
        self._before = bridges()
        self._groups = groups()

    def __enter__(self) -> Self:
        self._log = (self.folder / "dockerd.log").open("wb")
        try:
            self._process = subprocess.Popen(
                [
                    "dockerd", "--host", self.environment["DOCKER_HOST"],
                    "--data-root", self.folder / "data", "--exec-root", self.folder / "exec",
                    "--pidfile", self.folder / "dockerd.pid", "--iptables=false", "--ip-forward=false",
                ],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
            )  # fmt: skip
            wait(self._answers, "dockerd")
        except BaseException as error:
            print((self.folder / "dockerd.log").read_text()[-3000:])
            self.__exit__(type(error))
            raise
        return self

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"dockerd does not start here: it exited with {self._process.returncode}")
        return self.docker("info", check=False).returncode == 0

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.SubprocessError):
                if running := self.docker("ps", "--quiet", check=False).stdout.split():
                    self.docker("kill", *running, check=False)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := mount.split()[1]).startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", place], check=False)
        for bridge in bridges() - self._before:
            subprocess.run(["ip", "link", "delete", bridge], check=False)
        for group in sorted(groups() - self._groups, reverse=True):
            for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    inner.rmdir()
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def docker(self, *words: object, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command of the client. If it fails, raise an error with its output."""
        return self.run([PROGRAM, *words], check=check, **more)

    def run(self, command: list[object], *, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
        found = subprocess.run(
            [str(word) for word in command],
            env={**self.environment, **more.pop("env", {})}, capture_output=True, text=True, check=False, **more,
        )  # fmt: skip
        if check and found.returncode:
            raise RuntimeError(
                f"{command} exited with {found.returncode}:\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
            )
        return found

    def inspect(self, what: str, form: str) -> str:
        return self.docker("inspect", "--format", form, what).stdout.strip()


def bridges() -> set[str]:
    """Return the network interfaces that docker daemons have created."""
    return {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("docker", "br-", "veth"))}


def groups() -> set[Path]:
    """Return the control groups that docker daemons have created, of version 1 or 2."""
    return {path for pattern in ("docker", "*/docker") for path in GROUPS.glob(pattern) if path.is_dir()}
