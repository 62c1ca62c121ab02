"""Tests the manifests of `deploy/` with the schemas of three Kubernetes versions, and their queries with a database.

The tests have no API server, so they do not check admission and scheduling. `make manifests` checks the
resources of KEDA and the Helm chart.
"""

from __future__ import annotations

import copy

import kubernetes_validate
import psycopg
import pytest
import yaml

from jobherd.supervisor.settings.definitions import Settings
from tests.docs.pages import ROOT

VERSIONS = ("1.33", "1.35", "1.37")
KEDA = ("keda.yaml", "keda-scaledjob.yaml")


def resources(name):
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))


@pytest.mark.parametrize("version", VERSIONS)
def test_deployment_fits_the_kubernetes_schema(version):
    for resource in resources("kubernetes.yaml"):
        kubernetes_validate.validate(resource, version, strict=True)


def test_schema_rejects_a_misspelt_probe():
    [deployment] = resources("kubernetes.yaml")
    container = copy.deepcopy(deployment)["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    deployment["spec"]["template"]["spec"]["containers"] = [container]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_that_keda_starts_fit_the_schema_and_have_time_to_drain(version):
    [job] = resources("keda-scaledjob.yaml")
    target = copy.deepcopy(job["spec"]["jobTargetRef"])
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "whole"}, "spec": target}
    kubernetes_validate.validate(whole, version, strict=True)
    settings = Settings()
    assert (
        target["template"]["spec"]["terminationGracePeriodSeconds"] >= settings.drain_timeout + 2 * settings.grace + 10
    )


@pytest.mark.parametrize("name", KEDA)
def test_query_of_a_keda_trigger_runs_with_the_read_role(name, database):
    triggers = [trigger for resource in resources(name) for trigger in resource["spec"].get("triggers", ())]
    assert triggers
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET ROLE jobherd_read")
        for trigger in triggers:
            assert connection.execute(trigger["metadata"]["query"]).fetchone() == (0,)


def test_keda_target_per_pod_is_the_number_of_workers_of_a_pod():
    [deployment] = resources("kubernetes.yaml")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    workers = next(each["value"] for each in container["env"] if each["name"] == "JOBHERD_WORKERS")
    [scaled] = [resource for resource in resources("keda.yaml") if resource["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["triggers"][0]["metadata"]["targetQueryValue"] == workers
