"""The manifests of `deploy/` against the schemas of three versions of Kubernetes, and the queries in them against a database.

No API server can be had in tests: admission and scheduling stay unseen. `make manifests` checks the
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
def test_the_deployment_fits_the_schema(version):
    for resource in resources("kubernetes.yaml"):
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_probe_would_be_found():
    [deployment] = resources("kubernetes.yaml")
    container = copy.deepcopy(deployment)["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    deployment["spec"]["template"]["spec"]["containers"] = [container]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_that_keda_starts_fit_the_schema(version):
    [job] = resources("keda-scaledjob.yaml")
    target = copy.deepcopy(job["spec"]["jobTargetRef"])
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "whole"}, "spec": target}
    kubernetes_validate.validate(whole, version, strict=True)
    settings = Settings()
    assert (
        target["template"]["spec"]["terminationGracePeriodSeconds"] >= settings.drain_timeout + 2 * settings.grace + 10
    )


@pytest.mark.parametrize("name", KEDA)
def test_the_query_of_a_trigger_is_answered_to_a_reader(name, database):
    triggers = [trigger for resource in resources(name) for trigger in resource["spec"].get("triggers", ())]
    assert triggers
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET ROLE jobherd_read")
        for trigger in triggers:
            assert connection.execute(trigger["metadata"]["query"]).fetchone() == (0,)


def test_a_pod_of_the_deployment_counts_as_many_workers_as_it_has():
    [deployment] = resources("kubernetes.yaml")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    workers = next(each["value"] for each in container["env"] if each["name"] == "JOBHERD_WORKERS")
    [scaled] = [resource for resource in resources("keda.yaml") if resource["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["triggers"][0]["metadata"]["targetQueryValue"] == workers
