"""The message classes of the protocol, such as `Hello`. Their fields and types: `messages.pyi`.

The stub is written by `make schema`, like the descriptor set.
"""

from google.protobuf.message import DecodeError

from jobherd.handlers._remote.schema import MESSAGES

__all__ = ["DECODE_ERRORS", *MESSAGES]  # noqa: PLE0604  # all keys are strings

DECODE_ERRORS = (DecodeError, UnicodeDecodeError)
"""What decoding of invalid bytes raises. The second comes from the runtime in pure Python, which
platforms without a binary wheel have, for text that is not UTF-8."""

globals().update(MESSAGES)
