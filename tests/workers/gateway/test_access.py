"""Tests which principal a client is, and how the access file is validated. Needs neither gRPC nor a clock."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from jobherd.workers.gateway.access import (
    AccessError,
    AccessList,
    Principal,
    Rejections,
    Role,
    access_list,
    narrow,
    token_in,
)
from jobherd.workers.gateway.access_file import LiveAccess, read_access

MAIL, BUILD, ADMIN = "mail-token-of-the-test", "build-token-of-the-test", "admin-token-of-the-test"


def sha(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""
[principals.mailer]
token_sha256 = "{sha(MAIL)}"
role = "work"
kinds = ["mail.*", "ping"]
queues = ["mail", "batch*"]
tenants = ["acme"]

[principals.build]
token_sha256 = ["{sha(BUILD)}", "{"0" * 64}"]
role = "enqueue"

[principals.lab]
certificate = ["lab.example.com", "lab-2"]
"""


def every(text: str = FILE, *, certificates: bool = True) -> AccessList:
    return access_list([f"admin={ADMIN}"], text, certificates=certificates)


def problems(text: str, *, certificates: bool = True) -> tuple[str, ...]:
    with pytest.raises(AccessError) as caught:
        every(text, certificates=certificates)
    return caught.value.problems


@pytest.mark.promise("D8")
def test_token_identifies_its_principal_with_its_rights():
    mailer = every().identify(MAIL, ())
    assert (mailer.name, mailer.kinds, mailer.queues, mailer.tenants) == (
        "mailer",
        ("mail.*", "ping"),
        ("mail", "batch*"),
        ("acme",),
    )
    assert (mailer.works, mailer.enqueues) == (True, False)
    build = every().identify(BUILD, ())
    assert (build.name, build.works, build.enqueues) == ("build", False, True)
    admin = every().identify(ADMIN, ())
    assert (admin.name, admin.role, admin.kinds, admin.queues, admin.tenants) == ("admin", Role.BOTH, (), (), ())


def test_unnamed_token_from_the_settings_gets_a_default_name():
    assert access_list([ADMIN], "", certificates=False).identify(ADMIN, ()).name == "token"


@pytest.mark.parametrize("token", ["", "wrong", MAIL[:-1], MAIL + "x", sha(MAIL), "\udcff" * 20])
def test_unknown_or_missing_token_is_rejected(token):
    assert every().identify(token, ()) is None


def test_first_known_name_of_a_certificate_identifies_its_principal():
    assert every().identify("", ("unknown", "lab-2", "lab.example.com")).name == "lab"
    assert every().identify("", ("unknown",)) is None


def test_token_takes_precedence_over_the_certificate():
    assert every().identify("wrong", ("lab-2",)) is None
    assert every().identify(BUILD, ("lab-2",)).name == "build"


def test_without_principals_local_clients_and_signed_certificates_have_all_rights():
    assert access_list([], "", certificates=False).identify("", ()) == Principal("local")
    assert access_list([], "", certificates=False).identify("a token although none is needed", ()).name == "local"
    signed = access_list([], "", certificates=True)
    assert signed.identify("", ("build.example.com", "build")).name == "build.example.com"
    assert signed.identify("", ()) is None, "a certificate without a name"


def test_token_is_compared_with_every_stored_hash(monkeypatch):
    from jobherd.workers.system import tokens

    compared = []
    real = tokens.hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda one, other: compared.append(one) or real(one, other))
    for token in (ADMIN, MAIL, "wrong"):
        compared.clear()
        every().identify(token, ())
        assert len(compared) == 4, "an early exit would reveal through its timing which token matches"


def test_repr_of_the_access_list_contains_no_token_or_hash():
    shown = repr(every())
    assert all(each not in shown for token in (MAIL, BUILD, ADMIN) for each in (token, sha(token)))
    assert str(bytes.fromhex(sha(MAIL)))[2:-1] not in shown


def test_new_access_list_admits_only_unchanged_principals_of_the_earlier_list():
    old = every()
    mailer = old.identify(MAIL, ())
    assert every().admits(mailer)
    assert not every(FILE.replace(sha(MAIL), sha("another-token-of-the-test"))).admits(mailer), (
        "its token was withdrawn"
    )
    assert not every(FILE.replace('"mail.*", ', "")).admits(mailer), "its rights were reduced"
    lab = old.identify("", ("lab-2",))
    assert every().admits(lab)
    assert not every(FILE.replace(', "lab-2"', "")).admits(lab)
    signed = access_list([], "", certificates=True)
    assert signed.admits(signed.identify("", ("build",)))
    assert not every().admits(signed.identify("", ("build",)))


@pytest.mark.parametrize(
    ("wanted", "allowed", "found"),
    [
        ((), (), ()),
        ((), ("mail",), ("mail",)),
        (("mail",), (), ("mail",)),
        (("mail", "media"), ("mail",), ("mail",)),
        (("media",), ("mail",), None),
        (("batch-eu",), ("batch*",), ("batch-eu",)),
        (("batch*",), ("batch-eu", "batch-us", "mail"), ("batch-eu", "batch-us")),
        (("batch*",), ("b*",), ("batch*",)),
        (("b*",), ("batch*",), ("batch*",)),
        (("*",), ("mail",), ("mail",)),
        (("mail", "mail"), ("mail", "m*"), ("mail",)),
        (("mail*",), ("media*",), None),
    ],
)
@pytest.mark.promise("D8")
def test_requested_names_are_narrowed_to_the_allowed_names(wanted, allowed, found):
    assert narrow(wanted, allowed) == found


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""), ("Bearer a b", ""), ("", "")],
)
def test_token_is_read_from_the_authorization_header(header, token):
    assert token_in(header) == token


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[principals", "it is not TOML"),
        ("tokens = 1", "unknown table or key 'tokens'"),
        ("principals = 1", "principals must be a table"),
        ("[principals]\nx = 1", "principal x: expected a table"),
        ('[principals."a b"]\ncertificate = "x"', "principal 'a b'"),
        ("[principals.x]", "token_sha256 or certificate is missing"),
        ('[principals.x]\ntoken = "x"\ncertificate = "x"', "unknown key 'token'"),
        ('[principals.x]\ntoken_sha256 = "abc"', "token_sha256 must be 64 lower-case hex digits"),
        ('[principals.x]\ncertificate = "x"\nrole = "admin"', "role must be work, enqueue or both"),
        ('[principals.x]\ncertificate = "x"\nrole = ["work"]', "role must be work, enqueue or both"),
        ('[principals.x]\ncertificate = "x"\nkinds = "mail"', "kinds must be a list"),
        ('[principals.x]\ncertificate = "x"\nqueues = ["a,b"]', "queues must be a list"),
        ('[principals.x]\ncertificate = "x"\ntenants = [1]', "tenants must be a list"),
        (f'[principals.x]\ntoken_sha256 = ["{"1" * 64}", "{"1" * 64}"]', "another principal has the same token"),
        (f'[principals.x]\ntoken_sha256 = "{sha(ADMIN)}"', "another principal has the same token"),
        ('[principals.x]\ncertificate = "c"\n[principals.y]\ncertificate = "c"', "has the certificate 'c'"),
    ],
)
def test_error_in_the_access_file_is_reported(text, says):
    assert any(says in problem for problem in problems(text)), problems(text)


def test_all_errors_of_an_access_file_are_reported_at_once_without_any_token():
    found = problems(f'[principals.x]\ntoken_sha256 = "{MAIL}"\nrole = 3\n[principals.y]\nkinds = []')
    assert len(found) == 3
    assert MAIL not in "".join(found)


def test_certificate_principals_without_a_client_ca_are_an_error():
    assert "gateway_client_ca" in problems(FILE, certificates=False)[0]


def test_access_file_in_the_documentation_is_valid():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "operate" / "security.md").read_text()
    block = page.partition("```toml\n[principals.")[2].partition("```")[0]
    shown = access_list([], f"[principals.{block}", certificates=True)
    assert [each.name for each in (*shown.by_token, *shown.by_certificate.values())] == ["thumbnails", "shop"]


# -- the file


def test_access_file_is_read_again_only_after_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    access = LiveAccess([], path, certificates=True)
    mailer = access.identify(MAIL, ())
    reads = []
    real = type(path).read_text
    monkeypatch.setattr(type(path), "read_text", lambda self, **more: reads.append(self) or real(self, **more))
    assert access.identify(MAIL, ()).name == "mailer"
    assert reads == []
    path.write_text(FILE.replace(sha(MAIL), sha("another-token-of-the-test")))
    assert access.identify(MAIL, ()) is None
    assert access.identify("another-token-of-the-test", ()).name == "mailer"
    assert not access.admits(mailer), "the streams of this principal must end"
    assert len(reads) == 1


def test_replaced_file_with_the_same_size_and_mtime_is_read_again(tmp_path):
    path, new = tmp_path / "access.toml", tmp_path / "new"
    path.write_text(FILE)
    new.write_text(FILE.replace("mailer", "writer"))
    times = os.stat(path)
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    access = LiveAccess([], path, certificates=True)
    new.rename(path)
    assert access.identify(MAIL, ()).name == "writer"


@pytest.mark.parametrize("broken", ["[principals.x", None], ids=["wrong", "gone"])
def test_invalid_or_missing_file_keeps_the_principals_and_is_logged_once(tmp_path, caplog, broken):
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    access = LiveAccess([], path, certificates=True)
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    with caplog.at_level(logging.WARNING, "jobherd.gateway"):
        for _ in range(3):
            assert access.identify(MAIL, ()).name == "mailer"
    assert len(caplog.messages) == 1
    assert "keeping the earlier principals" in caplog.messages[0]
    path.write_text(FILE.replace("mailer", "writer"))
    assert access.identify(MAIL, ()).name == "writer"


def test_unreadable_file_at_startup_is_an_error(tmp_path):
    with pytest.raises(AccessError, match="cannot be read"):
        LiveAccess([], tmp_path / "missing", certificates=False)
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(AccessError, match="not UTF-8"):
        read_access([], tmp_path / "latin", certificates=False)


# -- rejections


def test_rejections_are_counted_and_logged_once_a_minute():
    rejections = Rejections()
    assert [rejections.note(now) for now in (0.0, 0.1, 59.9, 60.0, 60.1, 200.0)] == [1, 0, 0, 3, 0, 2]
    assert rejections.count == 6
