"""Settings of the documentation's site. `make docs` builds it in `build/docs`, from the whole tree.

The front page is the README, so links between it and the pages are those of the repository. The order of
the pages is that of the lists in `docs/index.md`.
"""

from __future__ import annotations

import re
from pathlib import Path

from jobherd.supervisor.version import VERSION

ROOT = Path(__file__).parents[1]
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

project = "Jobherd"
copyright = "the authors of Jobherd, MIT license"  # noqa: A001
release = version = VERSION
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "build", "dist", "*.egg-info", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nitpicky = True
default_role = "py:obj"  # a name between backticks in a docstring is a link if it is public
nitpick_ignore_regex = [
    (r"py:obj", r".*"),
    # Names of other packages and of the standard library, whose pages are not at hand when the site is built.
    (r"py:.*", r"(?!jobherd).*"),
    # Types of annotations that are not part of the public API.
    (r"py:.*", r"jobherd\.\w+\._.*"),
]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
suppress_warnings = ["myst.header"]  # the README begins sections as it likes
html_theme = "furo"
html_title = f"Jobherd {VERSION}"
html_extra_path = ["site"]


def toctrees() -> str:
    """Return a hidden table of contents for each list of `docs/index.md`."""
    made = []
    for section in INDEX.split("\n## ")[1:]:
        caption, _, text = section.partition("\n")
        pages = "\n".join(
            f"/docs/{page}" for page in re.findall(r"^- \[.*?\]\((.*?)\.(?:md|rst)\)", text, re.MULTILINE)
        )
        made.append(f":::{{toctree}}\n:hidden:\n:caption: {caption}\n{pages}\n:::\n")
    return "\n".join(made)


def setup(app: object) -> None:
    """Append the table of contents to the README; the repository's own pages come last."""

    def read(_: object, name: str, source: list[str]) -> None:
        if name == "README":
            own = "docs/index\nCHANGELOG\nSECURITY\nCONTRIBUTING"
            source[0] += f"\n{toctrees()}\n:::{{toctree}}\n:hidden:\n:caption: This repository\n{own}\n:::\n"

    app.connect("source-read", read)  # type: ignore[attr-defined]
