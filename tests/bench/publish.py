"""Write the figures of the last runs into the pages docs/project/performance*.md.

Each benchmark has a table and a picture, between its markers. `python -m tests.bench.publish`

The text outside the markers is written by hand and not changed. A part without figures is not
changed either.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tests.bench.picture import bars, lines
from tests.support.figures import Figure, show_spread
from tests.support.herd import ROOT

FIGURES = ROOT / ".bench" / "figures"
DOCS = ROOT / "docs" / "project"
PAGES = sorted(DOCS.glob("performance*.md"))


def record(name: str) -> dict[str, Any] | None:
    path = FIGURES / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def figures(found: dict[str, Any]) -> list[Figure]:
    made = []
    for each in found["figures"]:
        spreads = {name: None if each[name] is None else tuple(each[name]) for name in ("ours", "floor", "ratio")}
        made.append(Figure(**(each | spreads)))
    return made


def row(figure: Figure) -> list[str]:
    """A row of the table: label, figure, compared figure, ratio, number of values, aim."""
    sign = ">=" if figure.at_least else "<="
    aim = "" if figure.aim is None else f"{sign} {figure.aim:g}, {'met' if figure.met else '**missed**'}"
    against = "" if figure.floor is None else show_spread(figure.floor)
    ratio = "" if figure.ratio is None else show_spread(figure.ratio)
    return [figure.label, f"{show_spread(figure.ours)} {figure.unit}".rstrip(), against, ratio, str(figure.count), aim]


def rows(name: str) -> list[list[str]]:
    """The rows of a benchmark's table; none if it has no figures."""
    found = record(name)
    return [] if found is None else [[cell.replace("**", "") for cell in row(figure)] for figure in figures(found)]


def part(name: str, found: dict[str, Any]) -> str:
    """The text between the markers of a benchmark."""
    all_of_it = figures(found)
    table = ["| measured | found | against | ratio | n | aim |", "|---|---|---|---|---|---|"]
    table += ["| " + " | ".join(row(figure)) + " |" for figure in all_of_it]
    text = [f"{found['title'].partition(': ')[2]}. {found['machine']}.", "", *table]
    pictures = (
        {f"performance-{name}.svg": bars(found["title"], all_of_it)} if any(each.floor for each in all_of_it) else {}
    )
    for number, (title, curves) in enumerate(found["curves"].items()):
        pictures[f"performance-{name}-{number + 1}.svg"] = lines(title, curves)
    for file, drawn in pictures.items():
        (DOCS / file).write_text(drawn)
        text += ["", f"![{found['title']}]({file})"]
    return "\n".join(text)


def main() -> int:
    for path in PAGES:
        page = path.read_text()
        for name in re.findall(r"<!-- begin (\w+) -->", page):
            found = record(name)
            if found is not None:
                begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
                before, _, rest = page.partition(begin)
                page = f"{before}{begin}\n\n{part(name, found)}\n\n{end}{rest.partition(end)[2]}"
        path.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
