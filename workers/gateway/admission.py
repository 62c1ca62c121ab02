"""Admits the client of a call before its request is received and parsed.

A parsed message can take a hundred times its bytes: 8 MiB of empty messages inside it took 900 MB.
So only clients that were admitted make the gateway parse, and gRPC receives a request only once the
function reads it. `authentication.py` decides who is admitted; this module must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from jobherd.handlers._remote.grpc_methods import server_handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from jobherd.handlers._remote.schema import Method, Service
    from jobherd.workers.gateway.access import Role
    from jobherd.workers.gateway.authentication import Authenticator

    Context = grpc.aio.ServicerContext[Any, Any]
    Function = Callable[..., Awaitable[Any]]

NOT_A_MESSAGE: Final = "a message is not one of this protocol"


def admitting_handler(
    service: Service, functions: Mapping[str, Function], authenticator: Authenticator, role: Role
) -> grpc.GenericRpcHandler:
    """Return what gRPC calls for a service whose clients are known by their metadata or certificate.

    Args:
        service: the service.
        functions: the implementation of each method by its name. It gets the request, or an iterator
            of requests, the principal and the context. It may raise DecodeError.
        authenticator: admits the clients.
        role: what the calls need.

    Raises:
        KeyError: a method has no implementation.
    """
    calls = {name: _admitting(each, functions[name], authenticator, role) for name, each in service.methods.items()}
    return server_handler(service, calls, unread=True)


def _admitting(method: Method, function: Function, authenticator: Authenticator, role: Role) -> Function:
    parse = method.request.FromString

    async def call(requests: AsyncIterator[bytes], context: Context) -> Any:
        principal = await authenticator.admit(context, role=role)
        try:
            if method.streams_requests:
                return await function(_parsed(requests, parse), principal, context)
            async for data in requests:
                return await function(parse(data), principal, context)
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        except DecodeError:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NOT_A_MESSAGE)

    return call


async def _parsed(requests: AsyncIterator[bytes], parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    async for data in requests:
        yield parse(data)


def token_in_hello(data: bytes) -> str | None:
    """Return the token of the Hello in a WorkRequest that is not parsed yet; None: it has no Hello.

    Raises:
        DecodeError: it is not a message.
    """
    outer = _Outer.FromString(data)
    return str(outer.hello.token) if outer.HasField("hello") else None


def _outer() -> Any:
    """Return WorkRequest with only the token of its Hello: all other fields are unknown, so they stay bytes."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="token_in_hello.proto", package="t", syntax="proto3")
    for name, inner, kind, of in (
        ("Hello", "token", field.TYPE_STRING, None),
        ("Outer", "hello", field.TYPE_MESSAGE, ".t.Hello"),
    ):
        message = file.message_type.add(name=name)
        message.field.add(name=inner, number=1, type=kind, type_name=of, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Outer"))


_Outer: Final = _outer()
