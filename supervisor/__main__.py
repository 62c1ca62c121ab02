"""The console script `jobherd`, and `python -m supervisor`."""

from __future__ import annotations

from supervisor.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
