"""Makes `docs/reference/gateway-protocol.md` from the `.proto` files of the gateway's protocol. `make schema` writes it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from tests.support.checkout import ROOT
from tests.support.protocol import BUF, PROTO, SCALARS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

PAGE = ROOT / "docs" / "reference" / "gateway-protocol.md"
PACKAGE = "jobherd.worker.v1"
FILES = ("worker", "dispatch", "producer")
HEAD = """# Protocol of the gateway

<!-- Made by `make schema` from the .proto files. Do not edit. -->

The services and messages of the package `jobherd.worker.v1`, for authors of clients. [Clients of the gateway](../how-to/write/gateway-clients.md) explains how they
are used. The files are in `handlers/_remote/proto/jobherd/worker/v1/`; the gateway also serves `grpc.health.v1.Health`.
"""
Path = tuple[int, ...]
_SERVICE, _MESSAGE, _METHOD, _FIELD, _ENUM, _VALUE = 6, 4, 2, 2, 4, 2
"""Numbers of fields of the descriptors, as the paths of source locations name them."""
_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if number in SCALARS and number != FieldDescriptorProto.TYPE_ENUM
}


def described() -> list[FileDescriptorProto]:
    """Return the files with their comments."""
    command = [str(BUF), "build", str(PROTO), "--as-file-descriptor-set", "--output", "-#format=binpb"]
    made = FileDescriptorSet.FromString(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    by_name = {file.name: file for file in made.file}
    return [by_name[f"jobherd/worker/v1/{name}.proto"] for name in FILES]


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for file in described():
        comments = {
            tuple(one.path): re.sub(r"(?m)^ ", "", one.leading_comments).strip()
            for one in file.source_code_info.location
        }
        for number, service in enumerate(file.service):
            at: Path = (_SERVICE, number)
            parts.append(f"## {service.name}\n\n{comments[at]}\n")
            parts.append("| method | request | response | meaning |\n|---|---|---|---|")
            for index, method in enumerate(service.method):
                taken = _stream(method.input_type, streaming=method.client_streaming)
                given = _stream(method.output_type, streaming=method.server_streaming)
                meaning = _cell(comments[*at, _METHOD, index])
                parts.append(f"| `{method.name}` | {taken} | {given} | {meaning} |")
            parts.append("")
        for number, message in enumerate(file.message_type):
            parts += _message(message, (_MESSAGE, number), comments)
    return "\n".join(parts).rstrip() + "\n"


def _message(message: DescriptorProto, at: Path, comments: dict[Path, str]) -> Iterator[str]:
    yield f"### {message.name}\n\n{comments[at]}\n"
    if message.field:
        yield "| field | number | type | meaning |\n|---|---|---|---|"
        yield from _fields(message, at, comments)
        yield ""
    for index, enum in enumerate(message.enum_type):
        yield from _enum(message.name, enum, (*at, _ENUM, index), comments)


def _fields(message: DescriptorProto, at: Path, comments: dict[Path, str]) -> Iterator[str]:
    for index, field in enumerate(message.field):
        one_of = field.HasField("oneof_index") and not field.proto3_optional
        choice = f" One of `{message.oneof_decl[field.oneof_index].name}`." if one_of else ""
        meaning = _cell(comments[*at, _FIELD, index]) + choice
        yield f"| `{field.name}` | {field.number} | {_type(field)} | {meaning} |"


def _enum(owner: str, enum: EnumDescriptorProto, at: Path, comments: dict[Path, str]) -> Sequence[str]:
    rows = [
        f"| `{value.name}` | {value.number} | {_cell(comments[*at, _VALUE, index])} |"
        for index, value in enumerate(enum.value)
    ]
    return [f"`{owner}.{enum.name}`: {comments[at]}\n", "| value | number | meaning |\n|---|---|---|", *rows, ""]


def _type(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        name = _link(field.type_name)
    elif field.type == FieldDescriptorProto.TYPE_ENUM:
        name = f"`{field.type_name.removeprefix(f'.{PACKAGE}.')}`"
    else:
        name = f"`{_NAMES[field.type]}`"
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return ("repeated " if repeated else "optional " if field.proto3_optional else "") + name


def _stream(name: str, *, streaming: bool) -> str:
    return ("stream of " if streaming else "") + _link(name)


def _link(name: str) -> str:
    short = name.rpartition(".")[2]
    return f"[`{short}`](#{short.lower()})"


def _cell(comment: str) -> str:
    """Return a comment as one cell of a table."""
    return " ".join(comment.split()).replace("|", "\\|")


def write() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    write()
