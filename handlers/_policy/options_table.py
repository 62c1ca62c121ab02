"""Makes the table of a handler's options in `docs/reference/handler-options.md` from their declarations.

    python -m jobherd.handlers._policy.options_table docs/reference/handler-options.md

No other module imports this one.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from pathlib import Path

from jobherd.handlers._policy import policy
from jobherd.handlers._policy.backoff import DEFAULT

HEAD = "| option | default | meaning |\n|---|---|---|\n"


def render() -> str:
    """Return the table."""
    texts = _texts()
    rows = []
    for name, option in policy.OPTIONS.items():
        default = option["default"]
        shown = (
            json.dumps(default) if isinstance(default, str) else "Backoff()" if default is DEFAULT else repr(default)
        )
        see = f" See {option['see']}." if option["see"] else ""
        rows.append(f"| `{name}` | `{shown}` | {texts[name]}{see} |\n")
    return HEAD + "".join(rows)


def _texts() -> dict[str, str]:
    """Return the text below each field of the typed dicts of options."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(inspect.getsource(policy))):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options"):
            for field, text in zip(node.body, node.body[1:], strict=False):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as written)):
                        found[name] = " ".join(written.split())
    return found


if __name__ == "__main__":
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: render(), text), encoding="utf-8")
