"""The console script `jobherd`, and `python -m supervisor`: signals first, then the command line, which takes a while to load."""

from __future__ import annotations

import sys

from supervisor.signals import hold


def main() -> int:
    """Run the command of this process and return its exit code."""
    if sys.argv[1:2] == ["run"]:
        hold()  # a TERM while the rest is loaded would end us as if we had died of it, a TTIN would stop us for ever
    from supervisor.cli import main as command  # noqa: PLC0415 - it loads most of what there is

    return command()


if __name__ == "__main__":
    raise SystemExit(main())
