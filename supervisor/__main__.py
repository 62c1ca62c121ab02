"""The console script `jobherd`, and `python -m supervisor`: signals first, then the command line, which takes a while to load."""

from __future__ import annotations

import os
import sys

from supervisor.signals import hold


def main() -> int:
    """Run the command of this process and return its exit code."""
    _complete_streams()
    if sys.argv[1:2] == ["run"]:
        hold()  # a TERM while the rest is loaded would end us as if we had died of it, a TTIN would stop us for ever
    from supervisor.cli import main as command  # noqa: PLC0415 - it loads most of what there is

    return command()


def _complete_streams() -> None:
    """Have nothing stand for each standard stream that is closed: else its number is the next socket's, and whoever prints ends for it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open


if __name__ == "__main__":
    raise SystemExit(main())
