"""Decides which principal a client of the gateway is, and what that principal may do.

Values and pure functions: it knows neither gRPC nor a clock and reads no file, so the supervisor can
check an access file before it forks. `access_file.py` reads the file, `authentication.py` applies
the decision to a call.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.system import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,40}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PATTERN: Final = re.compile(r"[^\s*,]{1,100}\*?|\*")
_TENANT: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,100}")
_BEARER: Final = re.compile(r"bearer +(\S+) *", re.IGNORECASE)
LOCAL: Final = "local"
"""The name of a client that needs no token because only this host can connect."""


class Role(Enum):
    """What a principal may do."""

    WORK = "work"
    ENQUEUE = "enqueue"
    BOTH = "both"


class AccessError(ValueError):
    """The access file cannot be used. `problems` has one sentence for each error, without any token."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Principal:
    """A client, by the token or certificate that it has shown, and its rights.

    Attributes:
        name: for people, and the owner of a session: workers of one principal trust each other.
        kinds: names or prefixes (`mail.*`) of kinds. Empty: all.
        queues: names or prefixes of queues. Empty: all.
        tenants: names. Empty: all, and jobs without a tenant.
        credential: what it has shown: the digest of its token, or the name in its certificate.
    """

    name: str
    role: Role = Role.BOTH
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    credential: bytes = field(default=b"", repr=False)

    @property
    def works(self) -> bool:
        """Whether it may claim jobs and report their results."""
        return self.role is not Role.ENQUEUE

    @property
    def enqueues(self) -> bool:
        """Whether it may enqueue, read and cancel jobs."""
        return self.role is not Role.WORK

    @property
    def digest(self) -> bytes:
        """The digest of its token."""
        return self.credential


def narrow(wanted: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Return those of the wanted names and prefixes that are allowed; an empty list means all.

    None: none of them is allowed. That differs from an empty list, which would mean all.

    >>> narrow(("mail", "media"), ("mail",)), narrow((), ("mail",)), narrow(("mail",), ("batch*",))
    (('mail',), ('mail',), None)
    """
    if not wanted or not allowed:
        return tuple(wanted or allowed)
    found = dict.fromkeys(each for one in wanted for other in allowed if (each := _narrower(one, other)) is not None)
    return tuple(found) or None


def _narrower(one: str, other: str) -> str | None:
    """Return the one of two names or prefixes that the other one includes; None: they have nothing in common."""
    if other.endswith("*") and one.startswith(other[:-1]):
        return one
    if one.endswith("*") and other.startswith(one[:-1]):
        return other
    return one if one == other else None


def token_in(authorization: str) -> str:
    """Return the token of an `authorization` header; empty if it has none."""
    match = _BEARER.fullmatch(authorization)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class AccessList:
    """All principals.

    Attributes:
        by_token: those with a token.
        by_certificate: those with a certificate, by a name in it.
        certificates: every client shows a certificate that a trusted authority has signed.
    """

    by_token: tuple[Principal, ...] = ()
    by_certificate: Mapping[str, Principal] = field(default_factory=dict)
    certificates: bool = False

    def identify(self, token: str, names: Sequence[str]) -> Principal | None:
        """Return the client's principal, or None if it must be rejected.

        Without configured principals, every client that can connect may do everything.

        Args:
            token: the token that it has shown, or "". A wrong token is not ignored: its client
                expects the rights of that token.
            names: the names in its certificate, the most specific first.
        """
        if token and self.by_token:
            return tokens.find(self.by_token, token)
        if self.by_token or self.by_certificate:
            return next((self.by_certificate[name] for name in names if name in self.by_certificate), None)
        if not self.certificates:
            return Principal(LOCAL)
        return Principal(names[0], credential=names[0].encode()) if names else None

    def admits(self, principal: Principal) -> bool:
        """Return whether that principal, from an earlier list, still exists with the same rights."""
        if not (self.by_token or self.by_certificate):
            return principal == self.identify("", (principal.name,))
        return principal in self.by_token or principal in self.by_certificate.values()


def access_list(configured: Sequence[str], text: str, *, certificates: bool) -> AccessList:
    """Return the principals of the setting `gateway_token` and of an access file.

    Args:
        configured: tokens, each optionally `name=TOKEN`; they may do everything.
        text: the content of the access file, or "".
        certificates: every client shows a certificate.

    Raises:
        AccessError: says everything that is wrong with the file.
    """
    problems: list[str] = []
    by_token = [
        Principal(name or "token", credential=digest) for name, digest in filter(None, map(tokens.split, configured))
    ]
    by_certificate: dict[str, Principal] = {}
    for name, entry in _entries(text, problems):
        if not _NAME.fullmatch(name):
            problems.append(f"principal {name!r}: a name has 1 to 40 letters, digits and . _ @ -")
        problems += (f"principal {name}: {problem}" for problem in _check(entry, certificates=certificates))
        if problems:
            continue
        rights: dict[str, Any] = {key: tuple(entry.get(key, ())) for key in ("kinds", "queues", "tenants")}
        rights["role"] = Role(entry.get("role", Role.BOTH.value))
        by_token += (
            Principal(name, credential=bytes.fromhex(digest), **rights) for digest in _listed(entry, "token_sha256")
        )
        for shown in _listed(entry, "certificate"):
            if shown in by_certificate:
                problems.append(f"principal {name}: another principal has the certificate {shown!r}")
            by_certificate[shown] = Principal(name, credential=shown.encode(), **rights)
    digests = [each.digest for each in by_token]
    problems += (
        f"principal {each.name}: another principal has the same token"
        for place, each in enumerate(by_token)
        if each.digest in digests[:place]
    )
    if problems:
        raise AccessError(problems)
    return AccessList(tuple(by_token), by_certificate, certificates)


def _entries(text: str, problems: list[str]) -> Iterable[tuple[str, Any]]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        # the message has a place in the file and no content
        problems.append(f"it is not TOML: {problem}")
        return ()
    principals = table.pop("principals", {})
    problems += (f"unknown table or key {name!r}: expected [principals.NAME]" for name in table)
    if not isinstance(principals, dict):
        problems.append("principals must be a table: [principals.NAME]")
        return ()
    return principals.items()


def _check(entry: Any, *, certificates: bool) -> Iterable[str]:
    """Return a sentence for each error in a principal's table. Never quote a token."""
    if not isinstance(entry, dict):
        return ["expected a table"]
    found = [f"unknown key {key!r}: expected one of {', '.join(_KEYS)}" for key in entry if key not in _KEYS]
    for key, (pattern, what) in _KEYS.items():
        value = entry.get(key, ())
        values = [value] if key in entry and (key == "role" or (isinstance(value, str) and key in _SINGLE)) else value
        if not isinstance(values, list | tuple) or not all(
            isinstance(each, str) and pattern.fullmatch(each) for each in values
        ):
            found.append(f"{key} must be {what}")
    if not (entry.get("token_sha256") or entry.get("certificate")):
        found.append("token_sha256 or certificate is missing, so no client could be this principal")
    if entry.get("certificate") and not certificates:
        found.append("certificate has no effect without the setting gateway_client_ca")
    return found


def _listed(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key, [])
    return [value] if isinstance(value, str) else list(value)


_SINGLE: Final = ("token_sha256", "certificate")
"""Keys whose value may also be one text instead of a list."""
_KEYS: Final = {
    "token_sha256": (_DIGEST, "64 lower-case hex digits, or a list of such texts: `printf %s TOKEN | sha256sum`"),
    "certificate": (re.compile(r"\S{1,253}"), "a name in the certificate (SAN or CN), or a list of names"),
    "role": (re.compile("|".join(role.value for role in Role)), "work, enqueue or both"),
    "kinds": (_PATTERN, "a list of kinds, or prefixes such as `mail.*`"),
    "queues": (_PATTERN, "a list of queues, or prefixes such as `batch*`"),
    "tenants": (_TENANT, "a list of tenants"),
}
"""The keys of a principal, each with what its values must look like."""


class Rejections:
    """Counts rejected clients, and limits the log to one line a minute.

    Any client can cause a rejection, and its lines must not fill a disk.

    Attributes:
        count: all rejections of this process.
    """

    EVERY: Final = 60.0

    def __init__(self) -> None:
        self.count = 0
        self._logged = 0
        self._log_at = float("-inf")

    def note(self, now: float) -> int:
        """Count one; return how many the log line that is due now is about, or 0 if none is due."""
        self.count += 1
        if now < self._log_at:
            return 0
        self._log_at = now + self.EVERY
        since, self._logged = self.count - self._logged, self.count
        return since
