"""Renders pages: the templates, their filters for times, sizes and numbers, and their context.

Everything is always escaped: a template that needs its own markup contains it. An unknown variable
is an error. The context of a fragment is the same for all viewers with the same permissions, so it
is rendered once for all of them.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from jobherd.handlers._values.encryption import MARK, cover
from jobherd.workers.dashboard.cookies import clear_message, last_message
from jobherd.workers.dashboard.request import may_act, root_of, rules_of, viewer_of
from jobherd.workers.inspect import phrases
from jobherd.workers.inspect.failures import error_name, given_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request

HERE: Final = files("jobherd.workers.dashboard")
NOTHING: Final = "\N{EN DASH}"
"""The text for a missing value."""
_HIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a whole page.

    template: its name below templates/; it extends "base.html".
    status: of the response.
    context: variables in addition to those of every template (`url_for`, `static`, `may_act`, `ui`;
        in pages also `viewer`, `csrf_token`, `said`, `path`).

    >>> page(request, "queues.html", queues=rows)  # doctest: +SKIP
    """
    viewer = viewer_of(request)
    rules = rules_of(request)
    text = (
        environment()
        .get_template(template)
        .render(
            common(request.app, root_of(request), acting=may_act(request)),
            viewer=viewer,
            csrf_token=viewer.csrf,
            said=last_message(request),
            path=request.url.path.removeprefix(root_of(request)),
            query=request.url.query,
            read_only=rules.read_only,
            away_since=data.away_since if (data := request.app.state.database) else None,
            **(strip.strip() if (strip := request.app.state.attention) else {"attention": None}),
            **context,
        )
    )
    answer = HTMLResponse(text, status)
    clear_message(request, answer)
    return answer


def fragment(app: Starlette, root: str, template: str, context: Mapping[str, object], *, acting: bool) -> str:
    """Return a part of a page for all viewers with the same path and permissions.

    The browser inserts the token into its forms.
    """
    return environment().get_template(template).render(common(app, root, acting=acting), csrf_token="", **context)


def common(app: Starlette, root: str, *, acting: bool) -> dict[str, object]:
    """Return the variables of every template. `home`: the dashboard's path, above those of its `databases`."""

    def url_for(name: str, **params: Any) -> str:
        return root + link(app, name, **params)

    def static(name: str) -> str:
        return f"{root}/static/{name}?{_stamp(name)}"

    return {
        "url_for": url_for,
        "static": static,
        "may_act": acting,
        "databases": app.state.databases,
        "mount": app.state.mount,
        "home": root.removesuffix(app.state.mount),
    }


def link(app: Starlette, name: str, **params: Any) -> str:
    """Return the path of a page below the application's root."""
    told = {key: quote(value, safe="") if isinstance(value, str) else value for key, value in params.items()}
    return str(app.url_path_for(name, **told))


@cache
def environment() -> Environment:
    """Return the template environment, which is read once: a new version means a new process."""
    made = Environment(
        loader=FileSystemLoader(str(HERE / "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fit_to_show,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "when": when,
        "bytes": size,
        "duration": duration,
        "count": count,
        "ago": ago,
        "given_code": given_code,
        "share": share,
        "exact": lambda text: Markup("{}").format(text),
        "q": lambda text: quote(str(text), safe=""),
    }
    made.globals["error_name"] = error_name
    made.globals["ui"] = made.get_template("ui.html").module
    return made


def _fit_to_show(value: object) -> object:
    """Return a value as templates show it: encrypted parts covered, control characters visible."""
    return visible(cover(value) if isinstance(value, str) and MARK in value else value)


def visible(value: object) -> object:
    r"""Return a text with its control characters made visible.

    A browser shows nothing for them, so two different error codes would look the same. Values that
    a form sends back must stay unchanged: use the filter `exact` for these.

    >>> visible("NO\x1b[1mPAPER"), visible("two\nlines"), visible(7)
    ('NO␛[1mPAPER', 'two\nlines', 7)
    """
    return _HIDDEN.sub(_picture, value) if type(value) is str else value


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"\\x{code:x}"


@cache
def _stamp(name: str) -> str:
    """Return a stamp of a file's content, so that a browser caches the file until it changes."""
    return hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:10]


def when(moment: datetime | None, style: str = "clock") -> Markup | str:
    """Return a time as an element that the browser writes in the viewer's time zone.

    The exact time is shown on hover. style: clock (time of day, with the date if it is another
    day), ago ("3 min ago"), tick (time of day), day (day of the week and time), or exact.

    >>> "title" in (shown := when(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "exact")), shown.striptags()
    (True, '2026-01-02 03:04:05 UTC')
    """
    if moment is None:
        return NOTHING
    at = moment.astimezone(UTC)
    exact = at.isoformat(" ", "milliseconds").removesuffix("+00:00")
    shapes = {"tick": "%H:%M", "day": "%a %H:%M"}
    shown = ago(at) if style == "ago" else f"{at:{shapes[style]}}" if style in shapes else f"{exact[:19]} UTC"
    # Nothing in it needs to be escaped. Cost: lists have many of them, and `Markup.format` takes forty times as long.
    return Markup(  # noqa: S704
        f'<time datetime="{exact.replace(" ", "T")}Z" data-as="{style}" title="{exact} UTC">{shown}</time>'
    )


def ago(moment: datetime | None) -> str:
    """Return a timestamp relative to now, past or future."""
    if moment is None:
        return NOTHING
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def duration(seconds: float | timedelta | None) -> str:
    """Return a duration with its unit.

    >>> duration(75)
    '1 min 15 s'
    """
    return NOTHING if seconds is None else phrases.duration(seconds)


def size(number: float | None) -> str:
    """Return a number of bytes with its unit.

    >>> size(512), size(1536), size(5 * 2**30)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if number is None:
        return NOTHING
    return phrases.size(number)


def count(number: float | None) -> str:
    """Return a number with thousands separators.

    >>> count(1234567), count(0.25)
    ('1,234,567', '0.25')
    """
    if number is None:
        return NOTHING
    return f"{number:,}" if isinstance(number, int) else f"{number:,.3g}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders numbers within names by their value.

    >>> sorted(["q-10", "q-2", "a", "q-1"], key=natural)
    ['a', 'q-1', 'q-2', 'q-10']
    """
    parts = re.findall(r"([0-9]{1,18})|([^0-9]+|[0-9])", name)
    return [(0, int(digits), "") if digits else (1, 0, text) for digits, text in parts]


def share(part: float | None) -> str:
    """Return a fraction in percent.

    >>> share(0.1234), share(0.0004), share(1)
    ('12 %', '0.04 %', '100 %')
    """
    if part is None:
        return NOTHING
    percent = 100 * part
    if percent == 0 or percent >= 9.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"
