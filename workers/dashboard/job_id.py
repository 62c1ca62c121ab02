"""The URL path of a job, for ids of any sign.

Starlette's own `int` rejects negative numbers, and the page that links to such a job fails. A
database that was in use before the tables rejected ids below 1 may hold such jobs.
"""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor


class _JobId(Convertor[int]):
    regex = "-?[0-9]+"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(int(value))


register_url_convertor("jobherd_id", _JobId())
JOB_PATH: Final = "/jobs/{id:jobherd_id}"
