"""Host checks, tokens, roles, CSRF protection and response headers of the dashboard.

All tests but the last run without a database: a rejected request never reaches one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest
from starlette.routing import Route

from jobherd.workers.dashboard import Role, application
from jobherd.workers.dashboard.access import SESSION, Keys, Signer
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.application import PAGES
from jobherd.workers.dashboard.cookies import VISIT
from jobherd.workers.dashboard.guard import HEADERS
from jobherd.workers.dashboard.request import local, viewer_of
from tests.dashboard.support import W01, Page

OPERATE, VIEW = "operate-0123456789abcdef", "view-0123456789abcdef"
DSN = "host=/nowhere/at/all port=1 user=jobherd dbname=jobs"
done: list[tuple[str, dict[str, str]]] = []


@action
async def change(request, form):
    done.append((viewer_of(request).actor, dict(form)))
    return Done(
        form.get("say", "It is done."),
        to="/login-is-not-needed" if form.get("to") else None,
        well=not form.get("badly"),
    )


async def break_down(_):
    raise RuntimeError("a secret of the stack")


async def look(request):
    from jobherd.workers.dashboard.render import page

    return page(request, "error.html", title="Look", reason="here", since=None)


def made(**options):
    app = application(DSN, **options)
    app.router.routes[:0] = [
        Route("/change", change, methods=["POST"]),
        Route("/break", break_down),
        Route("/look", look),
    ]
    return app


@pytest.fixture(autouse=True)
def _nothing_done_yet():
    done.clear()


def open_page(host="localhost", address="127.0.0.1", **options):
    return Page(made(**options), host=host, address=address, raise_server_exceptions=False)


# -- hosts


@pytest.mark.parametrize("host", ["localhost", "localhost:8790", "127.0.0.1:1", "[::1]:8790", "LOCALHOST"])
def test_dashboard_without_tokens_accepts_the_names_of_the_loopback_address(host):
    assert open_page().get("/look", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8790",
        "",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "localhost:1@evil.example",
        "localhost@evil.example",
        "[::1].evil.example",
        "[::1",
        "[::1]x",
        "localhost:x",
        "localhost/evil",
        "localhost evil",
    ],
)
def test_dashboard_without_tokens_rejects_other_or_malformed_host_names(host):
    answer = open_page().get("/look", headers={"Host": host})
    assert (answer.status_code, "localhost only" in answer.text) == (403, True)
    assert "evil" not in answer.text


def test_dashboard_without_tokens_rejects_remote_clients_with_any_host_name():
    assert open_page(address="10.1.2.3").get("/look").status_code == 403
    named = open_page(host="jobs.example", address="10.1.2.3", hosts=["jobs.example"])
    assert named.get("/look").status_code == 403, "any client can send that host name"
    assert open_page(host="jobs.example", hosts=["jobs.example"]).get("/look").status_code == 200, (
        "a proxy on this host may send it"
    )


def test_dashboard_accepts_a_configured_host_name_and_rejects_others():
    page = open_page(hosts=["Jobs.Example"], operate_tokens=[OPERATE])
    sent = {"Authorization": f"Bearer {OPERATE}"}
    assert page.get("/look", headers={"Host": "jobs.example:443", **sent}).status_code == 200
    assert page.get("/look", headers={"Host": "evil.example", **sent}).status_code == 403


# -- tokens and roles


def test_dashboard_with_tokens_rejects_requests_without_a_valid_one():
    page = open_page(operate_tokens=[OPERATE], view_tokens=[VIEW], address="10.1.2.3", host="jobs.example")
    for path in ("/", "/jobs", "/jobs/1", "/live?topic=overview", "/search?q=1", "/no/such/page"):
        answer = page.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
    answer = page.get("/jobs?state=failed", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fjobs%3Fstate%3Dfailed")
    assert page.post("/change", data={"a": "b"}).status_code == 401
    assert page.get("/login").status_code == page.get("/static/dashboard.css").status_code == 200
    for token in ("wrong-0123456789abcdef", "", "x"):
        assert page.get("/look", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert done == []


def test_view_token_cannot_act_but_operate_token_can():
    page = open_page(operate_tokens=[f"alice={OPERATE}"], view_tokens=[VIEW])
    view, operate = ({"Authorization": f"Bearer {token}"} for token in (VIEW, OPERATE))
    assert page.get("/look", headers=view).status_code == 200
    refused = page.post("/change", data={"a": "b"}, headers=view)
    assert (refused.status_code, "may only view" in refused.text) == (403, True)
    assert done == []
    assert page.post("/change", data={"a": "b"}, headers=operate, follow_redirects=False).status_code == 303
    assert done == [("dashboard:alice", {"a": "b"})]


def test_browser_logs_in_and_out_with_forms():
    page = open_page(operate_tokens=[f"alice={OPERATE}"])
    wrong = page.act_at("/login", "/login", token="wrong-0123456789abcdef", next="/look")
    assert (wrong.status_code, "not valid for this dashboard" in wrong.text) == (403, True)
    answer = page.act_at("/login", "/login", token=OPERATE, next="/look")
    assert (answer.status_code, answer.headers["location"]) == (303, "/look")
    (session,) = [value for value in answer.headers.get_list("set-cookie") if value.startswith("jobherd_session")]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in session.split(";")}
    assert OPERATE not in session
    assert "dashboard:alice may operate" in page.get("/look").text
    assert page.act_at("/look", "/change", a="b").status_code == 303
    assert page.act_at("/look", "/logout").headers["location"] == "/login"
    assert page.get("/look", follow_redirects=False).status_code == 401


@pytest.mark.parametrize(
    "onward", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "evil"]
)
def test_login_redirects_to_the_overview_unless_next_is_a_local_path(onward):
    page = open_page(operate_tokens=[OPERATE])
    assert page.act_at("/login", "/login", token=OPERATE, next=onward).headers["location"] == "/"


SERVER = (b"s" * 32,)


def test_session_expires_and_a_forged_one_is_rejected():
    keys = Keys(operate=(f"alice={OPERATE}",))
    signer = Signer(keys, SERVER)
    cookie = signer.open_session(keys.known[0], now=1000.0)

    def opened(text=cookie, signer=signer, now=1000.0):
        return signer.session({signer.cookie: text}, now=now)

    found = opened(now=1000.0 + SESSION - 2)
    assert (found.role, found.name) == (Role.OPERATE, "alice")
    assert opened(now=1000.0 + SESSION + 1) is None
    body, _, signature = cookie.partition(".")
    for forged in (
        f"{body}x.{signature}",
        f"{body}.{signature[:-1]}",
        body,
        "",
        ".",
        "x.y",
        signer.seal("9999999999.x", "said"),
        "\udcff.\xff",
    ):
        assert opened(forged) is None
    for tokens in ({"operate": ("other-0123456789abcdef",)}, {"view": (VIEW,)}):
        assert opened(signer=Signer(Keys(**tokens), SERVER)) is None, "removing a token must end its sessions"
    assert opened(signer=Signer(keys, SERVER)), "a process with the same secret must accept the session"
    assert opened(signer=Signer(keys, (b"t" * 32,))) is None, "a process with another secret must reject it"
    assert opened(signer=Signer(keys, SERVER, frozenset({found.id}))) is None
    other = Signer(Keys(view=("x" * 16,)), SERVER)
    assert other.cookie != signer.cookie != Signer(keys, (b"t" * 32,)).cookie, (
        "dashboards on one host must not overwrite each other's cookies"
    )


def test_session_gets_the_role_and_name_that_its_token_has_now():
    cookies = {
        (signer := Signer(keys := Keys(operate=(f"alice={OPERATE}",)), SERVER)).cookie: signer.open_session(
            keys.known[0]
        )
    }
    found = Signer(Keys(view=(f"bob={OPERATE}",)), SERVER).session(cookies)
    assert (found.role, found.name) == (Role.VIEW, "bob")


def test_replaced_secret_verifies_old_signatures_but_signs_nothing_new():
    keys = Keys(operate=(OPERATE,))
    old, both, new = (Signer(keys, server) for server in (SERVER, (b"n" * 32, *SERVER), (b"n" * 32,)))
    before = {old.cookie: old.open_session(keys.known[0])}
    assert both.session(before)
    assert both.is_signed("a", "csrf", old.sign("a", "csrf"))
    assert both.unseal(old.seal("a", "said"), "said") == "a"
    assert both.shown(before) == old.shown(before) == before[old.cookie]
    assert new.session({both.cookie: both.open_session(keys.known[0])})
    assert new.session(before) is None


def test_all_tokens_together_do_not_suffice_to_forge_a_session_or_a_form():
    """Regression: the signing key was derived from the tokens.

    The holder of a view token could forge sessions with the role operate and any name.
    """
    app = made(view_tokens=[f"bob={VIEW}"])
    page = Page(app)
    for server in ((b"",), (hashlib.sha256(b"jobherd page" + hashlib.sha256(VIEW.encode()).digest()).digest(),)):
        forger = Signer(Keys(operate=(f"root={VIEW}",)), server)
        cookie = forger.open_session(forger._keys.known[0])
        for name in (forger.cookie, app.state.sessions.known.cookie):
            page.cookies.clear()
            page.cookies.set(name, cookie)
            assert page.get("/look", follow_redirects=False).status_code == 401
    text = page.csrf("/login")
    visit = page.cookies[VISIT]
    assert text != Signer(Keys(view=(VIEW,)), (b"",)).sign(visit, "csrf")
    key = hashlib.sha256(b"jobherd page" + hashlib.sha256(VIEW.encode()).digest()).digest()
    old = hmac.new(key, f"csrf\0{visit}".encode(), hashlib.sha256).digest()
    assert text != base64.urlsafe_b64encode(old).decode().rstrip("="), (
        "a guessed token could be verified against the form"
    )


def test_short_token_is_rejected_and_no_error_or_repr_contains_a_token():
    with pytest.raises(ValueError, match="16 to 200") as refused:
        application(DSN, operate_tokens=["alice=short"])
    assert "short" not in str(refused.value)
    assert OPERATE not in repr(Keys(operate=(OPERATE,)))


def test_authorize_function_of_a_site_decides_who_may_view_and_who_may_act():
    roles = {"root": Role.OPERATE, "guest": Role.VIEW}

    async def authorize(request):
        return roles.get(request.headers.get("x-user"))

    page = open_page(
        authorize=authorize, actor=lambda request: request.headers["x-user"], host="site.example", address="10.0.0.1"
    )
    assert page.get("/look", headers={"X-User": "guest"}).status_code == 200
    assert page.get("/look", headers={"X-User": "mallory"}).status_code == 403
    assert page.get("/look").status_code == page.get("/static/dashboard.css").status_code == 403
    for user, status in (("guest", 403), ("root", 303)):
        token = re.search(r'name="csrf" content="([^"]+)"', page.get("/look", headers={"X-User": user}).text)[1]
        sent = page.post("/change", data={"csrf": token}, headers={"X-User": user}, follow_redirects=False)
        assert sent.status_code == status
    assert [actor for actor, _ in done] == ["root"]


def test_read_only_dashboard_rejects_actions_even_with_an_operate_token():
    page = open_page(read_only=True, operate_tokens=[OPERATE])
    answer = page.post("/change", data={"a": "b"}, headers={"Authorization": f"Bearer {OPERATE}"})
    assert (answer.status_code, "read-only" in answer.text, done) == (403, True, [])


# -- requests from other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://["},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_cross_site_request_is_rejected_even_with_a_valid_csrf_token(headers):
    page = open_page()
    answer = page.post("/change", data={"csrf": page.csrf("/look")}, headers=headers)
    assert (answer.status_code, "another site" in answer.text, done) == (403, True, [])


def test_form_without_a_valid_csrf_token_is_rejected():
    page, other = open_page(), open_page()
    for token in ("", "x", other.csrf("/look"), page.csrf("/look")[:-1]):
        answer = page.post("/change", data={"csrf": token}, headers={"Origin": "http://localhost"})
        assert (answer.status_code, done) == (403, []), token
    assert page.post("/change", headers={"Origin": "http://localhost"}, data={"a": "b"}).status_code == 403
    assert page.act_at("/look", "/change").status_code == 303


def test_csrf_token_of_one_browser_is_rejected_from_another():
    app = made()
    page, other = Page(app), Page(app)
    stolen, own = page.csrf("/look"), other.csrf("/look")
    assert other.cookies[VISIT] != page.cookies[VISIT]
    assert other.post("/change", data={"csrf": stolen}).status_code == 403
    assert other.post("/change", data={"csrf": own}, follow_redirects=False).status_code == 303


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("text/plain", b"csrf=x", 415),
        ("application/json", b"{}", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/x-www-form-urlencoded", b"a=" + b"x" * (3 * 2**20), 413),
        ("application/x-www-form-urlencoded", b"\xff\xfe", 400),
        ("application/x-www-form-urlencoded", b"a=1&" * 30_000, 400),
        ("application/x-www-form-urlencoded", b"reason=a%00b", 400),
    ],
)
def test_action_rejects_other_content_types_and_malformed_or_large_forms(content_type, body, status):
    page = open_page()
    answer = page.post("/change", content=body, headers={"Content-Type": content_type})
    assert (answer.status_code, done) == (status, [])


@pytest.mark.parametrize("path", ["/jobs/" + "1" * 5000, "/jobs/bulk/" + "1" * 5000, "/jobs/7/inside/" + "1" * 5000])
def test_path_with_an_id_of_thousands_of_digits_is_not_found(path, caplog):
    assert open_page().get(path).status_code == 404
    assert caplog.records == []


def test_get_requests_change_nothing():
    """Each POST route is an action, the login or the logout. No GET route is an action."""
    for module in PAGES:
        for route in module.routes:
            is_action = getattr(route.endpoint, "is_action", False)
            assert is_action == ("POST" in route.methods) or route.path in {"/login", "/logout"}, route.path
            assert not (is_action and "GET" in route.methods), route.path


# -- response headers


def test_every_response_has_the_security_headers():
    page, locked = open_page(), open_page(operate_tokens=[OPERATE])
    answers = [
        page.get("/look"),
        page.get("/break"),
        page.get("/no/such/page"),
        page.get("/static/dashboard.css"),
        page.get("/static/../guard.py"),
        page.get("/look", headers={"Host": "evil.example"}),
        page.post("/change", data={}),
        page.post("/look"),
        page.get("/live"),
        page.head("/look"),
        locked.get("/look"),
        locked.get("/login"),
        locked.get("/look", headers={"Accept": "text/html"}, follow_redirects=False),
        page.act_at("/look", "/change"),
    ]
    assert {answer.status_code for answer in answers} >= {200, 303, 400, 401, 403, 404, 405, 500}
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value], (answer.request.url, name)
        assert "access-control-allow-origin" not in answer.headers
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "https:", "data:"} & set(re.split(r"[ ;]+", policy))


def test_error_page_does_not_contain_the_exception_message():
    answer = open_page().get("/break")
    assert (answer.status_code, "log has the details" in answer.text, "secret" in answer.text) == (500, True, False)


def test_only_versioned_static_files_may_be_cached():
    page = open_page()
    assert page.get("/look").headers["cache-control"] == "no-store"
    (style,) = re.findall(r'href="(/static/dashboard.css\?[0-9a-f]+)"', page.get("/look").text)
    assert "immutable" in page.get(style).headers["cache-control"]


# -- messages after an action


@pytest.mark.parametrize("text", W01)
def test_message_of_an_action_is_escaped_and_shown_once(text):
    page = open_page()
    answer = page.act_at("/look", "/change", say=text)
    assert (answer.status_code, answer.headers["location"]) == (303, "/look")
    shown = page.get("/look")
    assert 'class="banner good"' in shown.text
    if "<" in text:
        assert text not in shown.text
    assert 'class="banner good"' not in page.get("/look").text


def test_action_without_a_usable_referer_redirects_to_the_overview():
    """The action has taken effect by then, so an error would be misleading."""
    page = open_page()
    for referer in ("http://[", "", "x"):
        headers = {"Referer": referer, "Origin": "http://localhost"}
        answer = page.post("/change", data={"csrf": page.csrf("/look")}, headers=headers, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), referer
    assert len(done) == 3


def test_message_of_a_failed_action_is_shown_as_a_failure():
    page = open_page()
    page.act_at("/look", "/change", badly="1", say="No.")
    assert re.search(r'class="banner bad" role="status">No\.<', page.get("/look").text)


def test_forged_message_cookie_is_ignored():
    page = open_page()
    page.cookies.set("jobherd_said", "MVBheSBoZXJl.forged")
    assert "banner good" not in page.get("/look").text


@pytest.mark.parametrize(
    ("path", "answer"),
    [("/a?b=c", "/a?b=c"), ("//a", None), ("/\\a", None), ("https:/a", None), ("", None), ("/a\nb", None), ("a", None)],
)
def test_local_returns_only_paths_of_this_host(path, answer):
    assert local(path) == answer


# -- mounted below a path, and compression


def test_links_of_a_mounted_dashboard_start_with_its_mount_path():
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = made(authorize=lambda _: Role.OPERATE)
    page = Page(Starlette(routes=[Mount("/ops/jobs", inner)]), host="site.example")
    text = page.get("/ops/jobs/look").text
    links = re.findall(r'(?:href|src|action|data-live)="([^"#]*)"', text)
    assert len(links) > 8
    assert [link for link in links if not link.startswith("/ops/jobs/")] == []
    assert page.get("/ops/jobs/static/dashboard.css").status_code == 200
    answer = page.act_at("/ops/jobs/look", "/ops/jobs/change")
    assert answer.status_code == 303
    assert 'aria-current="page"' in page.get("/ops/jobs/audit").text
    assert page.get("/ops/jobs/search?q=17", follow_redirects=False).headers["location"] == "/ops/jobs/jobs/17"


def test_compressed_pages_have_the_security_headers(page):
    plain = page.get("/", headers={"accept-encoding": "identity"})
    packed = page.get("/", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 3
    for name, value in HEADERS.items():
        assert packed.headers[name] == value
