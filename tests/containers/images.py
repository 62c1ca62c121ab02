"""Builds images without a registry: a base of Debian's packages, and a replacement for `postgres`.

The tar of the base is kept below .bench/, since building it takes longer than everything else.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.herd import ROOT

if TYPE_CHECKING:
    from tests.containers.engine import Engine

HERE = Path(__file__).parent
TAR = ROOT / ".bench" / "containers" / "base.tar"
PACKAGES = (
    "python3",
    "python3-venv",
    "ca-certificates",
    "passwd",
    "procps",
    "postgresql",
    "systemd",
    "systemd-sysv",
    "dbus",
)
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE, PRODUCT, DATABASE, MACHINE = "jobherd-base", "jobherd", "postgres:17", "jobherd-machine"
"""The names of the images. The third is that of deploy/compose.yaml; here it has Debian's version of PostgreSQL."""


def make_base(engine: Engine) -> None:
    """Import the base, with this host's certificate authorities, which pip needs to reach its registry."""
    if not TAR.exists():
        TAR.parent.mkdir(parents=True, exist_ok=True)
        half = TAR.with_suffix(".half.tar")
        codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", codename, half],
            check=True,
        )
        half.rename(TAR)
    engine.docker("import", TAR, f"{BASE}:plain")
    context = engine.folder / "base"
    context.mkdir()
    (context / "ca-certificates.crt").write_bytes(AUTHORITIES.read_bytes())
    (context / "Dockerfile").write_text(
        f"FROM {BASE}:plain\n"
        f"COPY ca-certificates.crt {AUTHORITIES}\n"
        f"RUN printf '[global]\\ncert = {AUTHORITIES}\\n' > /etc/pip.conf\n"
    )
    engine.docker("build", "--tag", BASE, context)


def make_product(engine: Engine) -> None:
    """Build the unchanged deploy/Dockerfile on the base, from the files that git lists."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    context = engine.folder / "context.tar"
    subprocess.run(
        ["tar", "--create", "--file", context, "--null", "--ignore-failed-read", "--files-from", "-"],
        cwd=ROOT, input=listed, check=True,
    )  # fmt: skip
    with context.open() as file:
        engine.docker(
            "build", "--network", "host", "--build-arg", f"BASE={BASE}", "--file", "deploy/Dockerfile", "--tag", PRODUCT, "-",
            stdin=file,
        )  # fmt: skip


def make_database(engine: Engine) -> None:
    """Build the replacement for the image of PostgreSQL, which reads the same variables."""
    engine.docker("build", "--build-arg", f"BASE={BASE}", "--tag", DATABASE, HERE / "stand_in")


def make_machine(engine: Engine) -> None:
    """Build an image with systemd as its first process, PostgreSQL, and the product in /opt/jobherd."""
    context = engine.folder / "machine"
    context.mkdir()
    unit = (ROOT / "deploy" / "jobherd.service").read_bytes()
    (context / "jobherd.service").write_bytes(unit)
    (context / "Dockerfile").write_text(
        f"FROM {PRODUCT} AS product\n"
        f"FROM {BASE}\n"
        "COPY --from=product /opt/jobherd /opt/jobherd\n"
        "COPY jobherd.service /etc/systemd/system/\n"
        "RUN useradd --system jobherd && mkdir -p /etc/jobherd /srv/jobherd/handlers.d\n"
        'ENTRYPOINT ["/lib/systemd/systemd"]\n'
    )
    engine.docker("build", "--tag", MACHINE, context)
