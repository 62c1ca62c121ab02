"""Problems with the gateway's settings are reported before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobherd.supervisor.cli import gateway_check
from jobherd.supervisor.cli.gateway_check import gateway_problems
from jobherd.supervisor.settings.definitions import Settings
from tests.support.patience import LIMIT

TOKEN = "a-token-of-this-test"


@pytest.fixture
def files(tmp_path):
    """Readable files, by the setting that names them."""
    found = {name: tmp_path / name for name in ("gateway_cert", "gateway_key", "gateway_client_ca", "gateway_access")}
    for path in found.values():
        path.touch()
    return {name: str(path) for name, path in found.items()}


def problems(**flags: str) -> list[str]:
    return gateway_problems(Settings.load(flags, environ={}, directory=Path("/nonexistent")))


def test_nothing_is_checked_without_a_gateway(monkeypatch):
    monkeypatch.setattr(gateway_check, "find_spec", lambda name: pytest.fail(name))
    assert problems(gateway_access="/missing", gateway_cert="/missing") == []


@pytest.mark.parametrize("address", ["127.0.0.1:9091", "localhost", "[::1]:9091", "unix:/run/jobs.sock"])
def test_address_that_only_this_host_can_reach_needs_no_tls_or_token(address):
    assert problems(gateway=address) == []


@pytest.mark.parametrize("address", [":9091", "0.0.0.0:9091", "10.0.0.1", "jobs.example.com", "[::]:9091"])
def test_address_that_other_hosts_can_reach_needs_tls_and_authentication(address, files):
    assert [problem.partition("other hosts")[2] for problem in problems(gateway=address)] == [
        " without TLS: set gateway_cert and gateway_key",
        ", and every client could connect: set JOBHERD_GATEWAY_TOKEN (`openssl rand -hex 20` makes one), gateway_access or gateway_client_ca",
    ]
    tls = {name: files[name] for name in ("gateway_cert", "gateway_key")}
    assert len(problems(gateway=address, **tls)) == 1
    assert len(problems(gateway=address, gateway_token=TOKEN)) == 1
    for name in ("gateway_access", "gateway_client_ca"):
        assert problems(gateway=address, **tls, **{name: files[name]}) == []
    assert problems(gateway=address, **tls, gateway_token=TOKEN) == []


def test_certificate_needs_its_key_and_client_certificates_need_tls(files):
    local = {"gateway": "127.0.0.1:1"}
    assert problems(**local, gateway_cert=files["gateway_cert"]) == [
        "gateway_cert (from --gateway-cert) needs gateway_key: give both, or neither"
    ]
    assert problems(**local, gateway_key=files["gateway_key"]) == [
        "gateway_key (from --gateway-key) needs gateway_cert: give both, or neither"
    ]
    assert problems(**local, gateway_client_ca=files["gateway_client_ca"]) == [
        "gateway_client_ca (from --gateway-client-ca) needs TLS: set gateway_cert and gateway_key"
    ]


def test_unreadable_or_invalid_file_is_named_with_each_error(tmp_path):
    assert problems(gateway="[::1]", gateway_cert="/missing/cert", gateway_key="/missing/key") == [
        "gateway_cert = /missing/cert (from --gateway-cert) cannot be read",
        "gateway_key = /missing/key (from --gateway-key) cannot be read",
    ]
    access = tmp_path / "access.toml"
    access.write_text("[principals.a]\n[principals.b]\nrole = 'x'\n")
    found = problems(gateway="[::1]", gateway_access=str(access))
    assert len(found) == 3
    assert all(
        problem.startswith(f"gateway_access = {access} (from --gateway-access): principal ") for problem in found
    )


def test_problems_never_contain_a_token(tmp_path):
    access = tmp_path / "access.toml"
    access.write_text(f'[principals.a]\ntoken_sha256 = "{TOKEN}"\n')
    assert TOKEN not in "".join(problems(gateway=":1", gateway_token=TOKEN, gateway_access=str(access)))


@pytest.mark.parametrize("missing", ["grpc", "google", "google.protobuf"])
def test_missing_extra_is_reported_with_how_to_install_it(monkeypatch, missing):
    real, found = gateway_check.find_spec, gateway_check.PathFinder.find_spec
    monkeypatch.setattr(gateway_check, "find_spec", lambda name: None if name == missing else real(name))
    monkeypatch.setattr(
        gateway_check.PathFinder, "find_spec", lambda name, *rest: None if name == missing else found(name, *rest)
    )
    (problem,) = problems(gateway="localhost:9091")
    assert problem == (
        "gateway = localhost:9091 (from --gateway) needs packages that are not installed: pip install 'jobherd[grpc]'"
    )


def test_check_imports_neither_grpc_nor_protobuf():
    text = (
        "import sys; from jobherd.supervisor.cli.gateway_check import gateway_problems as check; "
        "from jobherd.supervisor.settings.definitions import Settings; "
        "print(check(Settings(gateway='unix:/x')), [name for name in sys.modules if name.partition('.')[0] in {'grpc', 'google'}])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.stdout == "[] []\n", done
