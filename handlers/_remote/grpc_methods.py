"""Connects the methods of the protocol to grpc: handlers for a server, callables for a client.

Import it only in a process that may have the threads of grpc: a client, a gateway, an uplink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.handlers._remote.schema import Method, Service


def server_handler(
    service: Service, functions: Mapping[str, Callable[..., Any]], *, unread: bool = False
) -> grpc.GenericRpcHandler:
    """Return the handler to add to a server, synchronous or asynchronous.

    Args:
        service: the service.
        functions: the implementation of each method by its name.
        unread: each function gets an iterator of bytes, also if the client sends one request: it decides
            whether to receive and parse any.

    Raises:
        KeyError: a method has no implementation.
    """
    return grpc.method_handlers_generic_handler(
        service.name,
        {name: _handler(method, functions[name], unread=unread) for name, method in service.methods.items()},
    )


def client_call(channel: grpc.Channel | grpc.aio.Channel, method: Method) -> Any:
    """Return the callable of a method: of grpc for a channel of grpc, of grpc.aio for one of grpc.aio."""
    factory = getattr(channel, _shape(method))
    return factory(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def _handler(method: Method, function: Callable[..., Any], *, unread: bool) -> grpc.RpcMethodHandler[Any, Any]:
    wrap = getattr(grpc, f"{_shape(method, unread=unread)}_rpc_method_handler")
    handler: grpc.RpcMethodHandler[Any, Any] = wrap(
        function,
        request_deserializer=None if unread else method.request.FromString,
        response_serializer=method.response.SerializeToString,
    )
    return handler


def _shape(method: Method, *, unread: bool = False) -> str:
    """Return grpc's name for the four kinds of methods, such as "stream_unary"."""
    streams = (method.streams_requests or unread, method.streams_responses)
    return "_".join("stream" if each else "unary" for each in streams)
