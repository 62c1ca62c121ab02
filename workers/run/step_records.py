"""Reads and builds the records of durable steps, which may be encrypted. It sends no statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._values.encryption import is_sealed, open_document, seal_document
from jobherd.handlers._values.payload import decode_payload, encode_result

if TYPE_CHECKING:
    from jobherd.handlers._run.durable import Durable


def opened(job: Durable, name: str, result: str | None) -> str | None:
    """Return the result of a record decrypted. Raises what `KeyRing.open` raises."""
    if result is None:
        return None
    document = decode_payload(result)
    return encode_result(open_document(document, "step", job.kind, job.id, name)) if is_sealed(document) else result


def sealed(job: Durable, name: str, result: str) -> str:
    """Return the result of a record encrypted. Raises what `seal_document` raises."""
    return seal_document(result, "step", job.kind, job.id, name)
