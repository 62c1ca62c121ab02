"""GitHub's REST API, as far as an import needs it: pages of an organization's repositories.

The token is sent only to the configured origin: not to the target of a redirect or a Link header,
and not unencrypted over a network. Nothing here waits or retries. The exceptions tell the job what
an answer means.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, IncompleteRead
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin, urlsplit

import orjson

if TYPE_CHECKING:
    from email.message import Message
    from http.client import HTTPMessage

PUBLIC: Final = "https://api.github.com"
TIMEOUT: Final = 30.0
LARGEST_PAGE: Final = 20_000_000
"""Bytes. A hundred repositories take about half a million. An endless page must not fill the
memory."""
LONGEST_WAIT: Final = 7200.0
"""Seconds. GitHub's limits are per hour. A later reset is a wrong clock, and the job tries again
after this."""
NO_RESET: Final = 60.0
"""Seconds to wait if GitHub reports too many requests without a time, as its documentation asks."""
_ORG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LINK: Final = re.compile(r'<([^<>]*)>\s*((?:;\s*[\w!#$&+.^`|~-]+\s*=\s*(?:"[^"]*"|[^";,\s]*)\s*)*)')
_REL: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^";,\s]*))', re.IGNORECASE)


class GitHubError(Exception):
    """GitHub could not be reached, or its answer cannot be used. Try again later."""


class NotFoundError(GitHubError):
    """The organization does not exist, or the token may not see it."""


class RateLimitError(GitHubError):
    """GitHub's rate limit is reached; try again after `wait` seconds."""

    def __init__(self, wait: float, why: str) -> None:
        super().__init__(f"GitHub's rate limit is used up; wait {wait:.0f} s ({why})")
        self.wait = wait


class SettingError(GitHubError):
    """JOBHERD_GITHUB_URL or JOBHERD_GITHUB_TOKEN is invalid."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of repositories."""

    repositories: tuple[tuple[str, str], ...]
    """Name and clone URL as GitHub returned them, not checked."""
    following: str | None
    """URL of the next page."""


@dataclass(frozen=True, slots=True)
class GitHub:
    """Address of GitHub's API and the token. Created by `from_environment`."""

    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"GitHub({self.url!r})"

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """Scheme, host and port of the API."""
        return origin_of(self.url)

    @property
    def web_host(self) -> str:
        """Host for clone URLs: the API's own, except at github.com."""
        host = self.origin[1]
        return host.removeprefix("api.") if host == "api.github.com" else host

    def first_page(self, org: str) -> str:
        """Return the URL of an organization's first page.

        Raises NotFoundError for an invalid name.
        """
        if not _ORG.fullmatch(org):
            message = f"{org[:100]!r} is not the name of an organization"
            raise NotFoundError(message)
        return f"{self.url}/orgs/{quote(org, safe='')}/repos?per_page=100&type=all&sort=full_name"

    def page(self, url: str) -> Page:
        """Request one page. Raises the errors of this module."""
        if origin_of(url) != self.origin:
            message = f"GitHub named a page on another host ({urlsplit(url).hostname}); the token must not go there"
            raise GitHubError(message)
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "jobherd",
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        # the origin, and so the scheme, was checked
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        opener = urllib.request.build_opener(_StayHere())
        try:
            with opener.open(request, timeout=TIMEOUT) as answer:
                body = answer.read(LARGEST_PAGE + 1)
                if answer.length and len(body) <= LARGEST_PAGE:  # the answer is shorter than announced
                    raise IncompleteRead(body, answer.length)
                return _read_page(body, next_link(answer.headers.get_all("Link") or [], base=url))
        except urllib.error.HTTPError as problem:
            with problem:
                raise _meaning(problem, problem.read(10_000)) from None
        except (OSError, HTTPException) as problem:  # URLError is an OSError
            reason = getattr(problem, "reason", problem)
            message = f"GitHub cannot be reached at {self.origin[1]}: {reason}"
            raise GitHubError(message) from None

    def git_settings(self, clone_url: str) -> dict[str, str]:
        """Return variables with which git clones using the token.

        So the token is in no command line and no file.
        """
        parts = urlsplit(clone_url)
        if not self.token or parts.hostname != self.web_host or parts.scheme != self.origin[0]:
            return {}
        words = base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
        return {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {words}",
            "GIT_CONFIG_KEY_1": "http.followRedirects",  # otherwise git would send the header to the redirect's target
            "GIT_CONFIG_VALUE_1": "false",
        }


def from_environment() -> GitHub:
    """Return the GitHub that the environment configures. Raises SettingError.

    Reads JOBHERD_GITHUB_URL (default https://api.github.com) and JOBHERD_GITHUB_TOKEN.
    """
    url = (os.environ.get("JOBHERD_GITHUB_URL") or PUBLIC).rstrip("/")
    token = (os.environ.get("JOBHERD_GITHUB_TOKEN") or "").strip() or None
    try:
        scheme, host, _ = origin_of(url)
        parts = urlsplit(url)
    except ValueError:
        scheme, host, parts = "", "", urlsplit("")
    if scheme not in {"http", "https"} or not host or parts.username or parts.query or parts.fragment:
        message = "JOBHERD_GITHUB_URL must be like https://api.github.com or https://git.example.com/api/v3"
        raise SettingError(message)
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        message = "JOBHERD_GITHUB_TOKEN holds characters that no token has"
        raise SettingError(message)
    if token is not None and scheme == "http" and not _is_this_machine(host):
        message = (
            "JOBHERD_GITHUB_URL is http: and not on this machine, so the token would be sent unencrypted: use https:"
        )
        raise SettingError(message)
    return GitHub(url, token)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def next_link(headers: list[str], *, base: str) -> str | None:
    """Return the next URL in a Link header, or None.

    >>> next_link(['<https://a/2>; rel="next", <https://a/9>; rel="last"'], base="https://a/1")
    'https://a/2'
    """
    for header in headers:
        for link in _LINK.finditer(header):
            for quoted, bare in _REL.findall(link[2]):
                if "next" in (quoted or bare).lower().split():
                    return str(urljoin(base, link[1]))
    return None


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows redirects within the origin only: urllib sends all headers, and so the token."""

    def redirect_request(  # noqa: PLR0917  # the signature of the library
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if origin_of(newurl) != origin_of(req.full_url):
            fp.close()
            message = f"GitHub sent us to another host ({urlsplit(newurl).hostname}); the token must not go there"
            raise GitHubError(message)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read_page(body: bytes, following: str | None) -> Page:
    if len(body) > LARGEST_PAGE:
        message = f"GitHub's answer is longer than {LARGEST_PAGE} bytes"
        raise GitHubError(message)
    try:
        document: Any = orjson.loads(body)
        found = tuple((str(one["name"]), str(one["clone_url"])) for one in document)
    except (ValueError, TypeError, KeyError):
        message = "GitHub's answer is not a list of repositories"
        raise GitHubError(message) from None
    return Page(found, following)


def _meaning(problem: urllib.error.HTTPError, body: bytes) -> GitHubError:
    """Return the exception for an answer that is not a success."""
    code, headers = problem.code, problem.headers
    if code == 404:
        return NotFoundError("GitHub has no such organization, or the token may not see it (404)")
    if code in {403, 429}:
        limited = _limit(headers)
        if limited is not None:
            return RateLimitError(*limited)
        if code == 429 or b"rate limit" in body.lower():
            return RateLimitError(NO_RESET, "its answer has no time of reset")
    if code in {401, 403}:
        return GitHubError(f"GitHub rejects the request ({code}): check JOBHERD_GITHUB_TOKEN and what it may see")
    return GitHubError(f"GitHub answered with {code}")


def _limit(headers: Message) -> tuple[float, str] | None:
    """Return how long to wait by the headers, and which header says so."""
    # Use GitHub's clock if it sends the time: the local clock may be off by more than the whole
    # wait.
    now = _moment(headers.get("Date")) or time.time()
    after = (headers.get("Retry-After") or "").strip()
    if re.fullmatch(r"\d{1,9}", after):
        return _within(float(after)), "Retry-After"
    if (moment := _moment(after)) is not None:
        return _within(moment - now), "Retry-After"
    reset = (headers.get("X-RateLimit-Reset") or "").strip()
    if (headers.get("X-RateLimit-Remaining") or "").strip() == "0" and re.fullmatch(r"\d{1,12}", reset):
        return _within(float(reset) - now + 1), "X-RateLimit-Reset"  # its seconds are whole numbers
    return None


def _moment(value: str | None) -> float | None:
    if not value:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _within(wait: float) -> float:
    return min(max(wait, 1.0), LONGEST_WAIT)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
