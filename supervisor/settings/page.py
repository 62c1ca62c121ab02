"""Generates `docs/reference/settings.md` from the descriptions of the settings; nothing is written by hand."""

from __future__ import annotations

from dataclasses import fields

from jobherd.supervisor.settings.definitions import Settings, shown, specifications
from jobherd.supervisor.settings.groups.remote_work import GROUP
from jobherd.supervisor.settings.sources import flag_of, variable_of

HEAD = """\
# Settings

<!-- Made by `python -m jobherd.supervisor.settings.page > docs/reference/settings.md`. Do not edit. -->

A setting comes from a flag of `jobherd run`, else from the environment, else from `jobherd.toml` or
from `[tool.jobherd]` in `pyproject.toml` of the working directory (`jobherd.toml` first, never
both), else it is the default. A variable that is set to nothing counts as not set. `jobherd run
--print-settings` shows every value and where it came from; `jobherd check` checks them without
starting anything.

```toml
# jobherd.toml
workers = 8
queues = ["mail", "media"]
drain_timeout = "10m"
```

Durations are written `"500ms"`, `"30s"`, `"10m"`, `"1h30m"`, `"7d"`, or as a number of seconds.
Sizes are written `"900MB"`, `"2GiB"`, or as a number of bytes; `M` alone is MiB, and `G` GiB.

These environment variables are not settings, because programs without a supervisor read them too:

- `JOBHERD_MAX_PAYLOAD`: most bytes of a payload that Python producers and `jobherd enqueue` accept,
  and of a result that a worker stores; default 1,000,000
- `JOBHERD_KEYS`, `JOBHERD_KEYS_FILE`: [the keys of encryption](../how-to/operate/security.md#encryption)
- `JOBHERD_ALLOW_WRITABLE_HANDLERS=1`: load [handlers that others could
  change](../how-to/operate/security.md#handlers-that-others-could-change)

The [forge](../project/forge.md#imports-from-github), an example, reads others.
"""


def render_settings_markdown() -> str:
    """Return `docs/reference/settings.md`; a test compares the two.

    `python -m jobherd.supervisor.settings.page > docs/reference/settings.md` writes that file.
    """
    settings = specifications()
    defaults = {each.name: each.default for each in fields(Settings)}
    lines = [HEAD]
    for group in dict.fromkeys(setting.group for setting in settings.values()):
        lines.append(f"## {group}\n")
        for name, setting in settings.items():
            if setting.group != group:
                continue
            variables = ", ".join(f"`{variable}`" for variable in (variable_of(name), *setting.variables))
            flag = flag_of(name)
            flags = f"`{flag}` or `--no-{flag[2:]}`" if isinstance(defaults[name], bool) else f"`{flag}`"
            if setting.group == GROUP:
                flags += " of `jobherd work`"
            default = setting.default_in_words or f"`{shown(name, defaults[name])}`"
            lines += [
                f"### `{name}`\n",
                f"{setting.explanation}\n",
                f"- flag {flags}, environment {variables}",
                f"- default: {default}",
                f"- must be {setting.reader.allowed}",
                *(["- a change takes a restart"] if setting.for_good else []),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(render_settings_markdown(), end="")
