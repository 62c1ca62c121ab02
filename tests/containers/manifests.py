"""Checks the manifests that `make test` cannot check: `make manifests`.

Checks the KEDA resources with models of KEDA's definitions, the Helm chart with Helm's own engine,
and the kustomization with kubectl. Runs in an environment below .bench/, since these packages need
Python 3.12, and one of them changes how pytest runs. Imports nothing of Jobherd.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from cloudcoil.models.keda import v1alpha1
from helm_sdkpy import Configuration, Lint

DEPLOY = Path(__file__).parents[2] / "deploy"
ERROR = 3
"""The severity from which Helm's lint fails."""
broken: list[str] = []


def holds(what: str, holds: object, found: object = "") -> None:
    print(f"{'holds ' if holds else 'BROKEN'}  {what}" + (f": {found}" if str(found) else ""), flush=True)
    if not holds:
        broken.append(what)


def fits(resource: dict[str, object]) -> bool:
    """Return whether the model of its kind accepts the resource."""
    try:
        getattr(v1alpha1, str(resource["kind"])).model_validate(resource)
    except (TypeError, ValueError):
        return False
    return True


def lint(chart: Path) -> list[dict[str, object]]:
    """Return the messages of Helm's lint, from warnings upwards."""
    found = asyncio.run(Lint(Configuration()).run(str(chart)))
    return [message for message in found["Messages"] or () if message["Severity"] > 1]


def main() -> int:
    for file in ("keda.yaml", "keda-scaledjob.yaml"):
        for resource in yaml.safe_load_all((DEPLOY / file).read_text()):
            holds(f"{file}: the {resource['kind']} fits KEDA's definition", fits(resource))
            if triggers := resource["spec"].get("triggers"):
                without = copy.deepcopy(resource)
                without["spec"]["triggers"] = [{"metadata": triggers[0]["metadata"]}]
                holds(f"{file}: a trigger without a type would be found", not fits(without))
    found = lint(DEPLOY / "helm")
    holds("the Helm chart: lint has nothing to say", not found, found or "")
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder, "helm")
        shutil.copytree(DEPLOY / "helm", chart)
        template = chart / "templates" / "deployment.yaml"
        template.write_text(template.read_text().replace("{{- end }}", "", 1))
        wrong = lint(chart)
        holds("the Helm chart: a broken template would be found", any(one["Severity"] >= ERROR for one in wrong))
        values = chart / "values.yaml"
        shutil.copy(DEPLOY / "helm" / "templates" / "deployment.yaml", template)
        values.write_text(
            values.read_text()
            .replace("enabled: false", "enabled: true")
            .replace("queues: []", "queues: [mail, 'media-*']")
        )
        found = lint(chart)
        holds("the Helm chart with KEDA, a PodMonitor and queues: lint has nothing to say", not found, found or "")
    if shutil.which("kubectl"):
        done = subprocess.run(["kubectl", "kustomize", DEPLOY], capture_output=True, text=True, check=False)
        holds("the kustomization builds", "kind: Deployment" in done.stdout, done.stderr.strip())
    else:
        print("not seen: the kustomization, since there is no kubectl here")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
