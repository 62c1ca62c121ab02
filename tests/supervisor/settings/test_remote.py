"""The settings of `jobherd work`: their sources, settings that they exclude, and those that the uplink gets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.settings.child import child_settings, uplink_settings
from jobherd.supervisor.settings.definitions import Settings, flags_of_run, specifications
from jobherd.supervisor.settings.remote import FLAGS, RemoteSettings
from jobherd.supervisor.settings.sources import SettingsError, flag_of


def load(**values):
    flags = {"gateway_addresses": "jobs.example.com", **values}
    return RemoteSettings.load(flags, environ={}, directory=Path("/"))


def refused(**values):
    with pytest.raises(SettingsError) as caught:
        load(**values)
    return caught.value.problems


def test_gateway_addresses_are_parsed_into_the_form_that_grpc_accepts():
    given = "jobs.example.com, 10.0.0.1:7000,[::1]:9091,unix:/run/gateway.sock"
    assert load(gateway_addresses=given).gateway_addresses == (
        "jobs.example.com:9091",
        "10.0.0.1:7000",
        "[::1]:9091",
        "unix:/run/gateway.sock",
    )
    for wrong in ("a:b:c", "host:99999", ":9091", "off"):
        assert "must be a list of HOST:PORT" in refused(gateway_addresses=wrong)[0]


def test_gateway_address_is_required():
    assert refused(gateway_addresses="") == (
        "no gateway is named: give --gateway HOST:PORT, or set JOBHERD_GATEWAY_ADDRESSES",
    )


@pytest.mark.parametrize(
    ("name", "value"), [("budget", "memory_mb=100"), ("queue_max_concurrency", "mail=2"), ("until_empty", True)]
)
def test_setting_that_needs_the_database_is_rejected_not_ignored(name, value):
    (problem,) = refused(**{name: value})
    assert problem.startswith(f"{name} (from {flag_of(name)}) needs the database")


def test_client_certificate_without_its_key_is_rejected():
    (problem,) = refused(gateway_client_cert="/a.crt")
    assert problem == "--gateway-cert (from --gateway-cert) needs --gateway-key: give both, or neither"


def test_one_file_can_configure_run_and_work(tmp_path):
    (tmp_path / "jobherd.toml").write_text('gateway = ":9091"\ngateway_addresses = ["a:1"]\nhttp = "127.0.0.1:8790"\n')
    here, there = (kind.load({}, environ={}, directory=tmp_path) for kind in (Settings, RemoteSettings))
    limits = [(each.web, each.has_gateway, each.has_uplink) for each in (Limits.of(here), Limits.of(there))]
    assert limits == [(True, True, False), (False, False, True)]
    assert Limits.of(there.again()).has_uplink, "a reload must keep the uplink"


def test_run_and_work_have_separate_settings_for_the_same_flag():
    assert flag_of("gateway") == flag_of("gateway_addresses") == "--gateway"
    assert {"gateway", "gateway_cert"} <= set(flags_of_run())
    for names in (flags_of_run(), FLAGS):
        assert len({flag_of(name) for name in names}) == len(names)
    assert set(flags_of_run()) | set(FLAGS) == set(specifications())


def test_uplink_settings_contain_addresses_credentials_and_worker_id(tmp_path):
    settings = load(gateway_token_file="/token", gateway_ca="/ca.crt", task_lease="90s")
    uplink = uplink_settings(settings, tmp_path)
    assert (uplink.folder, uplink.addresses) == (tmp_path, ("jobs.example.com:9091",))
    assert (uplink.token_file, uplink.ca, uplink.task_lease) == (Path("/token"), Path("/ca.crt"), 90.0)
    assert uplink.worker_id == socket.gethostname()
    assert uplink_settings(load(worker_id="outpost"), tmp_path).worker_id == "outpost"
    child = child_settings(settings, dsn="", uplink=uplink)
    assert (child.dsn, child.uplink) == ("", uplink)
