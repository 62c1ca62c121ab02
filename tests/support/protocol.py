"""Generates the checked-in files of the gateway's protocol: the descriptor set and the types of the messages.

`python -m tests.support.protocol`, or `make schema`, writes both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from tests.support.checkout import ROOT

REMOTE = ROOT / "handlers" / "_remote"
PROTO = REMOTE / "proto"
DESCRIPTORS = REMOTE / "schema.binpb"
STUB = REMOTE / "messages.pyi"
BUF = Path(sys.executable).with_name("buf")

SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_INT64: "int",
    FieldDescriptorProto.TYPE_UINT64: "int",
    FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_UINT32: "int",
    FieldDescriptorProto.TYPE_SINT32: "int",
    FieldDescriptorProto.TYPE_ENUM: "int",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "str",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
}
HEAD = """# The types of the protocol's messages, for type checkers. Written by `make schema`: do not edit.
# ruff: noqa: A002, N802

from collections.abc import Iterable
from typing import ClassVar, Literal

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError, Message

DECODE_ERRORS: tuple[type[DecodeError], type[UnicodeDecodeError]]
"""


def build() -> bytes:
    """Return the descriptor set of the `.proto` files, without their comments."""
    command = [BUF, "build", PROTO, "--as-file-descriptor-set", "--exclude-source-info", "--output", "-#format=binpb"]
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True).stdout


def stub(descriptors: bytes) -> str:
    """Return the text of the stub file with the types."""
    parts = [HEAD]
    for file in FileDescriptorSet.FromString(descriptors).file:
        for message in file.message_type:
            parts.append("\n".join([f"class {message.name}(Message):", *_body(message)]) + "\n")
    return "\n".join(parts)


def _body(message: DescriptorProto) -> list[str]:
    lines = []
    for enum in message.enum_type:
        lines.append(f"    {enum.name}: ClassVar[EnumTypeWrapper]")
        lines += [f"    {value.name}: ClassVar[int]" for value in enum.value]
    lines += [f"    {field.name}: {_read(field)}" for field in message.field]
    given = ", ".join(f"{field.name}: {_given(field)} = ..." for field in message.field)
    lines.append(f"    def __init__({f'self, *, {given}' if given else 'self'}) -> None: ...")
    for index, oneof in enumerate(message.oneof_decl):
        members = [field for field in message.field if field.HasField("oneof_index") and field.oneof_index == index]
        if not members[
            0
        ].proto3_optional:  # skip optional fields, each of which is a oneof of one member that no code uses
            choices = _literal([field.name for field in members])
            lines.append(f"    def WhichOneof(self, oneof_group: str) -> {choices} | None: ...")
    return lines


def _literal(names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"Literal[{quoted}]"


def _is_message(field: FieldDescriptorProto) -> bool:
    return field.type == FieldDescriptorProto.TYPE_MESSAGE


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name.rpartition(".")[2] if _is_message(field) else SCALARS[field.type]


def _read(field: FieldDescriptorProto) -> str:
    if field.label != FieldDescriptorProto.LABEL_REPEATED:
        return _type(field)
    return f"Repeated{'Composite' if _is_message(field) else 'Scalar'}FieldContainer[{_type(field)}]"


def _given(field: FieldDescriptorProto) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"Iterable[{_type(field)}] | None"
    return f"{_type(field)} | None"


def formatted(text: str) -> str:
    """Return the text formatted by ruff, as `make check` requires."""
    ruff = [str(BUF.with_name("ruff")), "format", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    made = build()
    DESCRIPTORS.write_bytes(made)
    STUB.write_text(formatted(stub(made)))
