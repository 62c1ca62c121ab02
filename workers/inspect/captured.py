"""The stored form of captured output, and its sizes."""

from __future__ import annotations

from typing import Final

import orjson

from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.handlers._values.sanitize import sanitize
from jobherd.workers.ipc.board_memory import OUTPUT

ENTRY: Final = b"\x1e"
"""A line that begins with this byte is an entry, as JSON."""


LOGGED: Final = b"\x1f"
"""A line that begins with this byte was logged."""


CHUNK: Final = 65536


def digest(data: bytes) -> str | None:
    """Return captured data as a JSON document with `output` and, if there are any, `entries`.

    It is None for no data. The document is ready to be stored: passwords in connection strings are
    masked, and bytes that are not text are replaced.
    """
    if not data:
        return None
    entries: list[object] = []
    lines: list[str] = []
    for line in data.split(b"\n"):
        text = redact_dsn(line.decode(errors="replace"))
        if line.startswith(ENTRY):
            try:
                entries.append(orjson.loads(text[1:]))
                continue
            except orjson.JSONDecodeError:
                text = text[1:]  # The beginning of the entry is lost.
        lines.append(text[1:] if line.startswith(LOGGED) else text)
    output = sanitize("\n".join(lines), 4 * OUTPUT)
    document: dict[str, object] = {"output": output} | ({"entries": entries} if entries else {})
    return orjson.dumps(document).decode().replace("\\u0000", "\\ufffd")
