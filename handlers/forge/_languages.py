"""Maps a file's name to its language. No file is opened."""

from __future__ import annotations

from typing import Final

OTHER: Final = "Other"

_BY_ENDING: Final = {
    ending: language
    for language, endings in {
        "Assembly": "asm s",
        "C": "c h",
        "C#": "cs",
        "C++": "cc cpp cxx hh hpp hxx",
        "CSS": "css less sass scss",
        "CSV": "csv tsv",
        "Clojure": "clj cljc cljs",
        "Dart": "dart",
        "Elixir": "ex exs",
        "Erlang": "erl hrl",
        "F#": "fs fsi fsx",
        "Fortran": "f f90 f95 for",
        "Go": "go",
        "GraphQL": "gql graphql",
        "Groovy": "gradle groovy",
        "HTML": "htm html xhtml",
        "Haskell": "hs lhs",
        "INI": "cfg conf ini",
        "JSON": "json json5 jsonc",
        "Java": "java",
        "JavaScript": "cjs js jsx mjs",
        "Julia": "jl",
        "Jupyter Notebook": "ipynb",
        "Kotlin": "kt kts",
        "Lisp": "cl el lisp scm",
        "Lua": "lua",
        "Make": "mak mk",
        "Markdown": "markdown md mdx",
        "Nix": "nix",
        "OCaml": "ml mli",
        "Objective-C": "m mm",
        "PHP": "php",
        "Perl": "pl pm",
        "PowerShell": "ps1 psm1",
        "Protocol Buffers": "proto",
        "Python": "py pyi pyx",
        "R": "r",
        "Ruby": "erb gemspec rake rb",
        "Rust": "rs",
        "SQL": "pgsql sql",
        "Scala": "sbt scala",
        "Shell": "bash fish ksh sh zsh",
        "Svelte": "svelte",
        "Swift": "swift",
        "TOML": "toml",
        "TeX": "bib sty tex",
        "Terraform": "hcl tf tfvars",
        "Text": "adoc asciidoc org rst txt",
        "TypeScript": "cts mts ts tsx",
        "Vue": "vue",
        "XML": "svg xml xsd xsl",
        "YAML": "yaml yml",
        "Zig": "zig",
    }.items()
    for ending in endings.split()
}
_BY_NAME: Final = {
    "cmakelists.txt": "CMake",
    "dockerfile": "Dockerfile",
    "gemfile": "Ruby",
    "gnumakefile": "Make",
    "justfile": "Make",
    "license": "Text",
    "makefile": "Make",
    "rakefile": "Ruby",
    "readme": "Text",
}


def language_of(path: bytes) -> str:
    """Return the language of a file, or "Other".

    >>> language_of(b"src/main.PY"), language_of(b"deploy/Dockerfile"), language_of(b"data.bin")
    ('Python', 'Dockerfile', 'Other')
    """
    name = path.rsplit(b"/", 1)[-1].decode(errors="replace").lower()
    if named := _BY_NAME.get(name):
        return named
    stem, dot, ending = name.rpartition(".")
    return _BY_ENDING.get(ending, OTHER) if dot and stem else OTHER
