"""The real parser accepts every command that a message, a help text, a page or a document prints."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from jobherd.supervisor.cli import _split, commands, parser_of
from jobherd.workers.inspect import explain_waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("supervisor", "workers", "handlers", "sql")
KNOWN: Final = commands()
PARSER: Final = parser_of(KNOWN)
NAMES: Final = {"version", "client", "web", "page", "reads", "or", "and", "did", "in"}
"""Words after `jobherd` in names of sessions and in sentences about the program, and the word for `--version`."""
_COMMAND: Final = re.compile(r"(?<![\w/.:@\"'-])(?<!from )jobherd (?=[a-z])")
_ENDS: Final = frozenset("|&;<>()")
_STANDS_FOR: Final = {
    "ID": "1",
    "N": "2",
    "KIND": "a:b",
    "QUEUE": "mail",
    "JSON": "{}",
    "COMMAND": "jobs",
    "WHAT": "demo",
}


class Printed(NamedTuple):
    """A command line in a text.

    exact: the text ends with the command; otherwise a sentence may continue after it.
    """

    place: str
    line: str
    exact: bool


def found_in(text: str, place: str) -> Iterator[Printed]:
    """Find commands: in backticks, alone on a line, before three spaces, and in sentences."""
    for line in text.replace("\\\n", " ").splitlines():
        for match in _COMMAND.finditer(line):
            rest = line[match.end() :]
            ticks = line[: match.start()].count("`") % 2
            alone = not re.sub(r"^\s*(\$ )?((?:[A-Z_]+=\S+|sudo|time) )*", "", line[: match.start()])
            if ticks:
                yield Printed(place, rest.partition("`")[0], exact=True)
            elif alone and "   " in rest.strip():
                yield Printed(place, rest.partition("   ")[0], exact=True)
            else:
                yield Printed(place, rest.partition("`")[0], exact=False)


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a Python file, with valid values in place of the expressions in f-strings."""
    tree = ast.parse(file.read_text())
    within = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else _filling(ast.unparse(part)) for part in node.values
            )
            yield node.lineno, "".join(map(str, parts))


def _filling(expression: str) -> str:
    return "drain" if "action" in expression else "1"


def printed() -> Iterator[Printed]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            name = str(file.relative_to(ROOT))
            if file.suffix == ".py":
                for line, text in texts_of(file):
                    yield from found_in(text, f"{name}:{line}")
            elif file.suffix in {".html", ".sql"} and "migrations" not in name:
                yield from found_in(file.read_text(), name)
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        if page.name != "CHANGELOG.md":
            yield from found_in(page.read_text(), page.name)


def words_of(line: str) -> list[str]:
    """Split a command like a shell, up to the first operator of the shell."""
    lexer = shlex.shlex(re.sub(r"\$\([^)]*\)", "1", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    with contextlib.suppress(ValueError):  # an apostrophe in a sentence
        for word in lexer:
            if set(word) <= _ENDS:
                break
            words.append(word)
    words = [word for at, word in enumerate(words) if word not in {"...", "…"} or words[at - 1].startswith("--")]
    return [_STANDS_FOR.get(word, word if "|" not in word else word.partition("|")[0]) for word in words]


def refusal(words: list[str]) -> str:
    """Return why the parser rejects these words, or an empty string."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            PARSER.parse_args(_split(words, KNOWN[words[0]]) if KNOWN[words[0]].passes_on else words)
    except SystemExit as problem:
        return said.getvalue().strip().rpartition("\n")[2] if problem.code else ""
    return ""


def problem_with(one: Printed) -> str:
    """Return what is wrong with a printed command, or an empty string.

    The name of a command without arguments is valid: it refers to the command.
    """
    words = words_of(one.line.strip().rstrip("`.,:"))
    if not words or words[0].strip(".,:;?`'\")") not in KNOWN:
        return "" if words and words[0].strip(".,:;'\"") in NAMES else "there is no such command"
    words[0] = words[0].strip(".,:;?`'\")")
    if len(words) == 1:
        return ""
    if one.exact:
        why = refusal(words)
        if " is missing." in why and not any(word.startswith("-") for word in words):
            return ""  # the name of a command or of its action
        return refusal([*words, "1"]) if " needs a value." in why else why
    # In a sentence, the command is the longest beginning that the parser accepts. No flag may follow
    # it.
    for size in range(len(words), 1, -1):
        cut = [*words[: size - 1], words[size - 1].rstrip(".,:;)")]
        if not refusal(cut):
            return f"its flag {words[size]} is unknown" if size < len(words) and words[size].startswith("-") else ""
    return problem_with(one._replace(exact=True)) if words[1].startswith("-") else ""


def test_parser_accepts_every_printed_command():
    every = list(printed())
    wrong = [f"{one.place}: jobherd {one.line.strip()}: {why}" for one in every if (why := problem_with(one))]
    assert not wrong, "\n".join(wrong)
    assert len(every) > 200, "too few commands were found in the texts"
    assert sum(one.exact for one in every) > 100


@pytest.mark.parametrize(
    "text",
    [
        "Run `jobherd resume --everything`.",
        "  jobherd resume --everything   to go on",
        "see jobherd doktor",
        "run jobherd job --jsn 5 and look",
        "`jobherd fleet restart ID`",
        "$ jobherd pause mail --because x",
    ],
)
def test_invalid_command_in_a_text_is_found(text: str):
    assert [one for one in found_in(text, "") if problem_with(one)]


@pytest.mark.parametrize(
    "text",
    [
        "Run `jobherd resume --all`.",
        "`jobherd job` shows it; see jobherd doctor.",
        "jobherd purge deletes those jobs",
        "  jobherd jobs --state failed --json | jq '.[].id' | jobherd retry -",
        "  jobherd wait $(jobherd enqueue mail:receipt '{\"order_id\": 7}') --timeout 1m",
        "`jobherd fleet drain|reload|add|remove ID`",
    ],
)
def test_valid_command_in_a_text_is_not_reported(text: str):
    assert not [problem for one in found_in(text, "") if (problem := problem_with(one))]


@pytest.mark.parametrize("scope", ["queue", "kind", "all"])
def test_command_that_why_suggests_for_a_pause_can_be_run(scope: str):
    advice = explain_waiting._open({"scope": scope, "name": "mail"})
    assert not [problem for one in found_in(f"  {advice}", "") if (problem := problem_with(one))]
