"""Send every message and every type of call through a real server, with any version of grpc.

`python -m tests.handlers._remote.exchange` prints a line with the versions at its end, or fails.
It runs in its own process: grpc starts threads, and other tests fork.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor

from jobherd.handlers._remote import grpc_methods, messages, schema

LIMIT = 60
"""Seconds until a call fails. No successful call takes this long."""
LATER = b"\xa2\x38\x05later"
"""An encoded field that no message has."""
TEXTS = {FieldDescriptor.TYPE_STRING: "größe", FieldDescriptor.TYPE_BYTES: b"\0\xff", FieldDescriptor.TYPE_DOUBLE: 0.1}


def filled(cls):
    """Return a message with every field set that can be set at the same time."""
    message = cls()
    for number, field in enumerate(cls.DESCRIPTOR.fields, 1):
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value = filled(schema.MESSAGES[field.message_type.name])
        else:
            value = TEXTS.get(field.type, 1 if field.type == FieldDescriptor.TYPE_BOOL else number)
        if isinstance(field.default_value, list):
            getattr(message, field.name).extend([value, value])
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


def check_messages():
    for name, cls in schema.MESSAGES.items():
        sent = filled(cls)
        assert cls.FromString(sent.SerializeToString()) == sent, name
        assert not cls.DESCRIPTOR.fields or sent != cls(), name
        later = cls.FromString(sent.SerializeToString() + LATER)
        assert all(getattr(later, field.name) == getattr(sent, field.name) for field in cls.DESCRIPTOR.fields), name
    try:
        messages.Hello.FromString(b"\x0a\x01\xff")
    except messages.DECODE_ERRORS:
        return
    raise AssertionError("text that is not UTF-8 was accepted")


def answer(request):
    return messages.WorkResponse(hello_ack=messages.HelloAck(worker_id=request.hello.worker_id))


@contextmanager
def served():
    """Yield the address of a server that answers with parts of the request."""

    def work(requests, _context):
        yield from map(answer, requests)

    def stream_jobs(request, _context):
        for number in range(request.max_in_flight):
            yield messages.StreamJobsResponse(tasks=messages.TaskBatch(tasks=[messages.Task(id=number)]))

    def refuse(_request, context):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    def heartbeat(request, _context):
        return messages.HeartbeatResponse(lost=request.tasks, session_seconds=request.extend_seconds)

    dispatch = {"StreamJobs": stream_jobs, "ReportResult": refuse, "Heartbeat": heartbeat, "ClaimJobs": refuse}
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (
            grpc_methods.server_handler(schema.WORKER, {"Work": work}),
            grpc_methods.server_handler(schema.DISPATCH, dispatch),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def check_calls(address):
    with grpc.insecure_channel(address) as channel:
        work = grpc_methods.client_call(channel, schema.WORKER.methods["Work"])
        sent = [messages.WorkRequest(hello=messages.Hello(worker_id=str(number))) for number in range(100)]
        assert list(work(iter(sent), timeout=LIMIT)) == list(map(answer, sent))
        stream_jobs = grpc_methods.client_call(channel, schema.DISPATCH.methods["StreamJobs"])
        got = stream_jobs(messages.StreamJobsRequest(max_in_flight=3), timeout=LIMIT)
        assert [one.tasks.tasks[0].id for one in got] == [0, 1, 2]
        heartbeat = grpc_methods.client_call(channel, schema.DISPATCH.methods["Heartbeat"])
        held = messages.TaskRef(task_id=1, claim=2)
        answered = heartbeat(messages.HeartbeatRequest(tasks=[held], extend_seconds=9), timeout=LIMIT)
        assert answered == messages.HeartbeatResponse(lost=[held], session_seconds=9)
        report = grpc_methods.client_call(channel, schema.DISPATCH.methods["ReportResult"])
        try:
            report(messages.ReportResultRequest(), timeout=LIMIT)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        else:
            raise AssertionError("an aborted call was answered")


async def check_calls_in_a_loop(address):
    """Check that the same handlers and callables work with grpc.aio."""

    async def work(requests, _context):
        async for request in requests:
            yield answer(request)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc_methods.server_handler(schema.WORKER, {"Work": work}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for target in (address, f"127.0.0.1:{port}"):
            async with grpc.aio.insecure_channel(target) as channel:
                stream = grpc_methods.client_call(channel, schema.WORKER.methods["Work"])(timeout=LIMIT)
                for number in range(100):
                    sent = messages.WorkRequest(hello=messages.Hello(worker_id=str(number)))
                    await stream.write(sent)
                    assert await stream.read() == answer(sent)
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
    finally:
        await server.stop(None)


def check_implementations():
    try:
        grpc_methods.server_handler(schema.DISPATCH, {"Heartbeat": print})
    except KeyError:
        return
    raise AssertionError("a service without all of its methods was accepted")


if __name__ == "__main__":
    check_messages()
    check_implementations()
    with served() as at:
        check_calls(at)
        asyncio.run(check_calls_in_a_loop(at))
    print(f"protobuf {version('protobuf')} grpcio {version('grpcio')}: ok")
