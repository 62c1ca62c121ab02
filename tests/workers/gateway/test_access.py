"""Which client is which principal, and what the access file may say. Neither gRPC nor a clock is needed."""

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
def test_a_token_names_its_principal_with_its_rights():
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


def test_a_token_of_the_settings_without_a_name_has_one_for_people():
    assert access_list([ADMIN], "", certificates=False).identify(ADMIN, ()).name == "token"


@pytest.mark.parametrize("token", ["", "wrong", MAIL[:-1], MAIL + "x", sha(MAIL), "\udcff" * 20])
def test_another_token_or_none_is_rejected(token):
    assert every().identify(token, ()) is None


def test_a_certificate_names_its_principal_and_the_first_name_that_is_known_counts():
    assert every().identify("", ("unknown", "lab-2", "lab.example.com")).name == "lab"
    assert every().identify("", ("unknown",)) is None


def test_a_wrong_token_is_not_forgiven_because_of_a_right_certificate():
    assert every().identify("wrong", ("lab-2",)) is None
    assert every().identify(BUILD, ("lab-2",)).name == "build"


def test_without_any_principal_a_local_client_or_a_signed_certificate_may_do_everything():
    assert access_list([], "", certificates=False).identify("", ()) == Principal("local")
    assert access_list([], "", certificates=False).identify("a token although none is needed", ()).name == "local"
    signed = access_list([], "", certificates=True)
    assert signed.identify("", ("build.example.com", "build")).name == "build.example.com"
    assert signed.identify("", ()) is None, "a certificate without a name"


def test_a_token_is_compared_with_each_one(monkeypatch):
    from jobherd.workers.system import tokens

    compared = []
    real = tokens.hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda one, other: compared.append(one) or real(one, other))
    for token in (ADMIN, MAIL, "wrong"):
        compared.clear()
        every().identify(token, ())
        assert len(compared) == 4, "the time taken must not tell which one fits"


def test_no_token_is_in_what_is_shown_of_a_principal():
    shown = repr(every())
    assert all(each not in shown for token in (MAIL, BUILD, ADMIN) for each in (token, sha(token)))
    assert str(bytes.fromhex(sha(MAIL)))[2:-1] not in shown


def test_a_principal_of_an_earlier_list_is_admitted_while_it_is_the_same():
    old = every()
    mailer = old.identify(MAIL, ())
    assert every().admits(mailer)
    assert not every(FILE.replace(sha(MAIL), sha("another-token-of-the-test"))).admits(mailer), "withdrawn"
    assert not every(FILE.replace('"mail.*", ', "")).admits(mailer), "it may do less now"
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
def test_what_is_wanted_is_narrowed_to_what_is_allowed(wanted, allowed, found):
    assert narrow(wanted, allowed) == found


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""), ("Bearer a b", ""), ("", "")],
)
def test_the_token_of_an_authorization_header(header, token):
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
def test_what_is_wrong_with_a_file_is_said(text, says):
    assert any(says in problem for problem in problems(text)), problems(text)


def test_everything_that_is_wrong_is_said_at_once_and_never_a_token():
    found = problems(f'[principals.x]\ntoken_sha256 = "{MAIL}"\nrole = 3\n[principals.y]\nkinds = []')
    assert len(found) == 3
    assert MAIL not in "".join(found)


def test_certificates_without_an_authority_that_signs_them_are_an_error():
    assert "gateway_client_ca" in problems(FILE, certificates=False)[0]


def test_the_file_that_the_documentation_shows_is_sound():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "operate" / "security.md").read_text()
    block = page.partition("```toml\n[principals.")[2].partition("```")[0]
    shown = access_list([], f"[principals.{block}", certificates=True)
    assert [each.name for each in (*shown.by_token, *shown.by_certificate.values())] == ["thumbnails", "shop"]


# -- the file


def test_a_file_that_changes_is_read_again_and_one_that_does_not_is_not(tmp_path, monkeypatch):
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
    assert not access.admits(mailer), "its streams end"
    assert len(reads) == 1


def test_a_file_of_the_same_size_and_time_is_noticed_if_it_is_another_one(tmp_path):
    path, new = tmp_path / "access.toml", tmp_path / "new"
    path.write_text(FILE)
    new.write_text(FILE.replace("mailer", "writer"))
    times = os.stat(path)
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    access = LiveAccess([], path, certificates=True)
    new.rename(path)
    assert access.identify(MAIL, ()).name == "writer"


@pytest.mark.parametrize("broken", ["[principals.x", None], ids=["wrong", "gone"])
def test_a_file_that_becomes_wrong_or_is_gone_changes_nothing_and_is_warned_of_once(tmp_path, caplog, broken):
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


def test_a_file_that_cannot_be_read_at_the_start_is_an_error(tmp_path):
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
