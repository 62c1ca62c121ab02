"""Discovery over a real HTTP server that answers like GitHub, including its errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from jobherd.handlers.forge import _github
from jobherd.handlers.forge._github import next_link
from jobherd.handlers.forge.github import discover, request_import
from jobherd.testing import Ran, run_payload
from tests.handlers.forge.conftest import Forge

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORT = "SELECT status, next_page, note FROM jobherd.forge_github_imports"
REPOS = "SELECT name, clone_url, status, job FROM jobherd.forge_github_import_repos ORDER BY id"


@dataclass
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class GitHubServer:
    """A server that answers with a function from path and query to an Answer, and stores the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[str], Answer] = lambda _: Answer([])
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                said = outer.answer(self.path)
                body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
                self.send_response_only(said.status)
                for name, value in (
                    {"Date": formatdate(usegmt=True), "Content-Length": str(len(body))} | said.headers
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def pages(self, names: list[str], *, per_page: int = 100) -> Callable[[str], Answer]:
        """Return a function that answers with pages of repositories, linked like GitHub's pages."""

        def answer(path: str) -> Answer:
            assert path.startswith("/orgs/example/repos?"), path
            number = int(path.partition("&page=")[2] or 1)
            some = names[(number - 1) * per_page : number * per_page]
            last = -(-len(names) // per_page)
            base = f"{self.url}/orgs/example/repos?per_page=100"
            links = (
                f'<{base}&page={number + 1}>; rel="next", <{base}&page={last}>; rel="last"'
                if number < last
                else f'<{base}&page=1>; rel="first"'
            )
            return Answer([self.repository(name) for name in some], headers={"Link": links})

        return answer

    def repository(self, name: str, url: str | None = None) -> dict[str, Any]:
        return {"id": 1, "name": name, "clone_url": url or f"{self.url}/example/{name}.git", "private": False}


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubServer]:
    server = GitHubServer()
    monkeypatch.setenv("JOBHERD_GITHUB_URL", server.url)
    monkeypatch.delenv("JOBHERD_GITHUB_TOKEN", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    yield server
    server.close()


def wanted(forge: Forge) -> tuple[int, int]:
    """Request an import and remove its job from the queue. Return the ids of the import and the job."""
    import_id, job = request_import("example")
    forge.rows("DELETE FROM jobherd.ready WHERE id = %s", job)
    return import_id, job


def run(import_id: int, **fields: Any) -> Ran:
    return run_payload(discover, {"import_id": import_id}, **fields)


@pytest.mark.promise("A14", "A15", "A19")
def test_discovery_enqueues_a_job_for_every_repository_of_every_page(forge: Forge, github: GitHubServer) -> None:
    names = [f"repo-{number}" for number in range(250)]
    github.answer = github.pages(names)
    import_id, job = wanted(forge)
    assert forge.one("SELECT job FROM jobherd.forge_github_imports") == job
    ran = run(import_id)
    assert ran.result == {"import": import_id, "repositories": 250, "refused": 0}
    assert forge.one(IMPORT) == {"status": "discovered", "next_page": None, "note": None}
    rows = forge.rows(REPOS)
    assert [row["name"] for row in rows] == names
    assert [(one["id"], one["kind"]) for one in forge.waiting()] == [
        (row["job"], "org:github_import_repo") for row in rows
    ]
    assert [path.partition("&page=")[2] for path, _ in github.asked] == ["", "2", "3"]


@pytest.mark.promise("A14")
def test_finished_discovery_sends_no_further_requests(forge: Forge, github: GitHubServer) -> None:
    github.answer = github.pages(["one"])
    import_id, _ = wanted(forge)
    run(import_id)
    github.asked.clear()
    assert "skipped" in run(import_id).result  # type: ignore[operator]
    assert github.asked == []
    assert len(forge.rows(REPOS)) == len(forge.waiting()) == 1


def test_discovery_waits_for_the_end_of_a_rate_limit_and_continues_with_the_same_page(
    forge: Forge, github: GitHubServer
) -> None:
    pages = github.pages([f"repo-{number}" for number in range(250)])
    reset = int(time.time()) + 900
    limited = Answer(
        {"message": "API rate limit exceeded"}, 403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)}
    )
    github.answer = lambda path: limited if "page=2" in path else pages(path)
    import_id, _ = wanted(forge)
    ran = run(import_id)
    assert ran.outcome.label == "retry"
    assert reset - time.time() <= ran.outcome.delay <= 905
    stands = forge.one(IMPORT)
    assert stands["status"] == "discovering"
    assert stands["next_page"].endswith("&page=2")
    assert "rate limit is used up" in stands["note"]
    assert len(forge.rows(REPOS)) == 100

    github.answer = pages
    github.asked.clear()
    assert run(import_id).outcome.label == "ok"
    assert [path.partition("&page=")[2] for path, _ in github.asked] == ["2", "3"]
    assert len(forge.rows(REPOS)) == len(forge.waiting()) == 250


@pytest.mark.parametrize(
    ("status", "headers", "delay"),
    [
        (429, {"Retry-After": "37"}, 37),
        (403, {"Retry-After": "37", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 37),
        (429, {}, 60),
        (429, {"Retry-After": "soon"}, 60),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 1),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "99999999999"}, 7200),
        # GitHub's clock counts, which differs from the local clock here.
        (
            403,
            {
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "1000000600",
                "Date": formatdate(1_000_000_000, usegmt=True),
            },
            601,
        ),
        (
            429,
            {"Retry-After": formatdate(1_000_000_300, usegmt=True), "Date": formatdate(1_000_000_000, usegmt=True)},
            300,
        ),
    ],
)
def test_delay_comes_from_the_rate_limit_headers_and_is_limited(
    forge: Forge, github: GitHubServer, status: int, headers: dict[str, str], delay: float
) -> None:
    github.answer = lambda _: Answer({}, status, headers)
    ran = run(wanted(forge)[0])
    assert ran.outcome.label == "retry"
    assert ran.outcome.delay == pytest.approx(delay, abs=3)


def test_secondary_rate_limit_is_recognized_by_its_message(forge: Forge, github: GitHubServer) -> None:
    github.answer = lambda _: Answer({"message": "You have exceeded a secondary rate limit"}, 403)
    assert run(wanted(forge)[0]).outcome.delay == pytest.approx(60, abs=1)


def test_organization_or_import_that_does_not_exist_is_poison(forge: Forge, github: GitHubServer) -> None:
    github.answer = lambda _: Answer({"message": "Not Found"}, 404)
    ran = run(wanted(forge)[0])
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "GITHUB_NOT_FOUND")
    assert forge.one(IMPORT)["status"] == "failed"
    assert run(4711).outcome.code == "IMPORT_VANISHED"


@pytest.mark.parametrize(
    "answer",
    [
        Answer({}, 500),
        Answer({}, 502),
        Answer({"message": "Bad credentials"}, 401),
        Answer({"message": "Resource not accessible"}, 403, {"X-RateLimit-Remaining": "4000"}),
        Answer(b"<html>we are down</html>"),
        Answer({"message": "not a list"}),
        Answer([{"name": "no address"}]),
        Answer(b"[" * 100_000),
        Answer(b"[]", headers={"Content-Length": "1000"}),
    ],
)
def test_temporary_github_error_is_retried(forge: Forge, github: GitHubServer, answer: Answer) -> None:
    github.answer = lambda _: answer
    import_id, _ = wanted(forge)
    ran = run(import_id)
    assert (ran.outcome.label, ran.outcome.code) == ("retry", "GITHUB_UNAVAILABLE")
    assert forge.one(IMPORT)["status"] == "discovering"
    assert run(import_id, attempt=20, max_attempts=20).outcome.label == "failed"
    assert forge.one(IMPORT)["status"] == "failed"
    github.answer = github.pages(["one"])
    assert run(import_id).outcome.label == "ok"


def test_unreachable_github_is_retried(forge: Forge, github: GitHubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_URL", "http://127.0.0.1:1")
    ran = run(wanted(forge)[0])
    assert (ran.outcome.label, ran.outcome.code) == ("retry", "GITHUB_UNAVAILABLE")


# -- the token


def test_token_is_sent_to_github_and_never_shown(
    forge: Forge, github: GitHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_TOKEN", "secret-word")
    github.answer = lambda _: Answer({"message": "Bad credentials"}, 401)
    ran = run(wanted(forge)[0])
    assert github.asked[0][1]["authorization"] == "Bearer secret-word"
    assert "secret-word" not in repr(ran) + repr(_github.from_environment()) + str(forge.one(IMPORT))


@pytest.mark.parametrize("how", ["Link", "Location"])
def test_token_is_never_sent_to_another_host(
    forge: Forge, github: GitHubServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_TOKEN", "secret-word")
    other = GitHubServer()
    try:
        answers = {
            "Link": Answer(
                [github.repository("one")], headers={"Link": f'<{other.url}/orgs/example/repos?page=2>; rel="next"'}
            ),
            "Location": Answer({}, 302, {"Location": f"{other.url}/orgs/example/repos"}),
        }
        github.answer = lambda _: answers[how]
        import_id, _ = wanted(forge)
        for _ in range(2):
            ran = run(import_id)
            assert ran.outcome.label == "retry"
            assert "another host" in str(ran.outcome.error)
        assert other.asked == []
    finally:
        other.close()


def test_redirect_on_the_same_host_is_followed(forge: Forge, github: GitHubServer) -> None:
    github.answer = lambda path: (
        Answer([github.repository("one")])
        if path.startswith("/organizations/7")
        else Answer({}, 301, {"Location": f"{github.url}/organizations/7/repos"})
    )
    assert run(wanted(forge)[0]).outcome.label == "ok"


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        ("http://git.example.com/api/v3", "secret-word", "use https"),
        ("ftp://git.example.com", "", "must be like"),
        ("https://user:word@git.example.com", "", "must be like"),
        ("https://git.example.com:port", "", "must be like"),
        ("nonsense", "", "must be like"),
        ("https://git.example.com", "two\nlines", "no token has"),
    ],
)
def test_invalid_github_settings_are_reported_and_the_job_is_retried(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, url: str, token: str, said: str
) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_URL", url)
    monkeypatch.setenv("JOBHERD_GITHUB_TOKEN", token)
    ran = run(wanted(forge)[0])
    assert ran.outcome.label == "retry"
    assert said in str(ran.outcome.error)
    assert "word" not in str(ran.outcome.error).replace("password", "")


# -- names

TRICKS = ["..", ".", "../../etc", "a/b", "/etc/passwd", "nul\0byte", "", "x" * 101, "new\nline", "ünïcode", "a b"]


def test_unsafe_repository_names_are_recorded_and_never_imported(forge: Forge, github: GitHubServer) -> None:
    good = ["fine", ".github", "-rf", "--upload-pack=touch", "a.b_c-d"]
    assert "--upload-pack=touch" not in TRICKS
    good.remove("--upload-pack=touch")
    github.answer = lambda _: Answer([github.repository(name) for name in [*TRICKS, "--upload-pack=touch", *good]])
    ran = run(wanted(forge)[0])
    assert ran.result == {"import": 1, "repositories": len(TRICKS) + 1 + len(good), "refused": len(TRICKS) + 1}
    assert [row["name"] for row in forge.rows(REPOS) if row["status"] == "discovered"] == good
    assert len(forge.waiting()) == len(good)


@pytest.mark.parametrize(
    "address",
    [
        "ext::sh -c touch% /tmp/x",
        "file:///etc",
        "/etc",
        "ssh://127.0.0.1/x.git",
        "git@127.0.0.1:x.git",
        "http://elsewhere.example.com/x.git",
        "http://somebody:word@127.0.0.1/x.git",
        "--upload-pack=touch",
        "http://127.0.0.1/x\n.git",
        "http://127.0.0.1:port/x.git",
    ],
)
def test_unsafe_clone_urls_are_rejected(forge: Forge, github: GitHubServer, address: str) -> None:
    github.answer = lambda _: Answer([github.repository("one", address)])
    assert run(wanted(forge)[0]).result == {"import": 1, "repositories": 1, "refused": 1}
    assert forge.waiting() == []


@pytest.mark.parametrize("org", ["", "..", "a/b", "-x", "a b", "x" * 101, "a?b", "ünïcode"])
def test_invalid_organization_name_is_rejected_before_enqueue(forge: Forge, org: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an organization"):
        request_import(org)
    assert forge.rows(IMPORT) == []


@pytest.mark.parametrize(
    ("header", "following"),
    [
        ('<https://a/2>; rel="next"', "https://a/2"),
        ('<https://a/1>; rel="prev", <https://a/3>; rel="next", <https://a/9>; rel="last"', "https://a/3"),
        ("<https://a/2>; rel=next", "https://a/2"),
        ('<https://a/2>; title="a, b"; rel="next"', "https://a/2"),
        ('</2?q=a,b>; REL="Next"', "https://a/2?q=a,b"),
        ('<https://a/2>; rel="prev next"', "https://a/2"),
        ('<https://a/2>; rel="nextish"', None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_next_link_finds_the_url_of_the_next_page(header: str, following: str | None) -> None:
    assert next_link([header], base="https://a/1") == following
