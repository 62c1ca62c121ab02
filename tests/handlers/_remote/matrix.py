"""Run `exchange` with each pair of versions of protobuf and grpcio, each in its own environment below `.bench/grpc/`.

`make grpc-matrix` runs this module. `make test` does not: it installs packages and takes several minutes.
"""

from __future__ import annotations

import configparser
import itertools
import os
import subprocess
import sys
import venv

from tests.support.checkout import ROOT, import_path

PROTOBUF = {"4.25": "== 4.25.*", "5.29": "== 5.29.*", "6.33": "== 6.33.*", "newest": ">= 4.25"}
GRPCIO = {"1.62": "== 1.62.*", "newest": ">= 1.62"}
"""The oldest and the newest version of each; for protobuf also the last one of each major version."""


def exchange(protobuf: str, grpcio: str) -> str:
    """Return the last line that `exchange` prints with these versions."""
    place = ROOT / ".bench" / "grpc" / f"protobuf-{protobuf}-grpcio-{grpcio}"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = [
        *config["options"]["install_requires"].strip().splitlines(),
        f"protobuf {PROTOBUF[protobuf]}",
        f"grpcio {GRPCIO[grpcio]}",
    ]
    pip = [python, "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check", *wanted]
    subprocess.run(pip, check=True)
    command = [python, "-W", "error", "-m", "tests.handlers._remote.exchange"]
    environment = os.environ | {"PYTHONPATH": import_path()}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


if __name__ == "__main__":
    failed = False
    for pair in itertools.product(PROTOBUF, GRPCIO):
        line = exchange(*pair)
        print(line, flush=True)
        failed |= not line.endswith(": ok")
    sys.exit(failed)
