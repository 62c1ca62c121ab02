"""Loads the protocol from its descriptor set: the message classes, and the methods of each service.

It must not import grpc: a worker that speaks the protocol over a Unix socket needs only protobuf.

There is no generated code. Code that protoc generates loads only with a protobuf runtime that is at
least as new, and a handler may need an older one. The descriptor set loads with protobuf 4.25 and
newer. `make schema` builds it from the files below `proto/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service."""

    name: str
    path: str
    """Name on the wire, such as "/jobherd.worker.v1.WorkerService/Work"."""
    request: type[Message]
    response: type[Message]
    streams_requests: bool
    streams_responses: bool


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the protocol."""

    name: str
    """Full name, such as "jobherd.worker.v1.WorkerService"."""
    methods: dict[str, Method]
    """The methods by name."""


def _load() -> tuple[DescriptorPool, list[str]]:
    content = files("jobherd.handlers._remote").joinpath("schema.binpb").read_bytes()
    # A separate pool: the default pool of the process rejects a file that another library has
    # loaded in another form, and `grpc.health.v1` is in many libraries.
    pool = DescriptorPool()
    names = []
    for file in FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
        names.append(file.name)
    return pool, names


def _method(method: MethodDescriptor) -> Method:
    service = method.containing_service
    return Method(
        name=method.name,
        path=f"/{service.full_name}/{method.name}",
        request=GetMessageClass(method.input_type),
        response=GetMessageClass(method.output_type),
        streams_requests=method.client_streaming,
        streams_responses=method.server_streaming,
    )


def _service(name: str) -> Service:
    service = POOL.FindServiceByName(name)
    return Service(name, {method.name: _method(method) for method in service.methods})


def _messages(name: str) -> dict[str, type[Message]]:
    messages = POOL.FindFileByName(name).message_types_by_name
    return {message: GetMessageClass(descriptor) for message, descriptor in messages.items()}


POOL, _FILES = _load()
MESSAGES: Final[dict[str, type[Message]]] = {
    message: cls for file in _FILES for message, cls in _messages(file).items()
}
"""Every message class by its name. With its type: `jobherd.handlers._remote.messages`."""
WORKER: Final = _service("jobherd.worker.v1.WorkerService")
DISPATCH: Final = _service("jobherd.worker.v1.DispatchService")
PRODUCER: Final = _service("jobherd.worker.v1.ProducerService")
HEALTH: Final = _service("grpc.health.v1.Health")
SERVICES: Final = (WORKER, DISPATCH, PRODUCER, HEALTH)
