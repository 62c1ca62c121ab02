"""The generated files match the `.proto` files, and every message survives encoding and decoding."""

from __future__ import annotations

import re

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from jobherd.handlers._remote import messages, schema
from tests.support import protocol_page
from tests.support.protocol import DESCRIPTORS, PROTO, STUB, build, formatted, stub

LARGE = 2**63
NUMBERS = {
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_INT64: st.integers(-LARGE, LARGE - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2 * LARGE - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.integers(-(2**31), 2**31 - 1),  # includes values that this version does not have
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}
"""Strategies for the values of a field, by field type."""
names = st.sampled_from(sorted(schema.MESSAGES))


def values(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        one = filled(schema.MESSAGES[field.message_type.name])
    else:
        one = NUMBERS[field.type]
    return st.lists(one, max_size=3) if isinstance(field.default_value, list) else one


def filled(cls: type) -> st.SearchStrategy[object]:
    """Return a strategy for messages of that class with any fields set. No message contains itself."""
    fields = {field.name: values(field) for field in cls.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: cls(**given))


def test_descriptor_set_matches_the_proto_files():
    assert FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()) == FileDescriptorSet.FromString(build()), (
        "make schema"
    )


def test_type_stubs_match_the_descriptor_set():
    assert formatted(stub(DESCRIPTORS.read_bytes())) == STUB.read_text(), "make schema"


def test_protocol_reference_page_matches_the_proto_files():
    assert protocol_page.render() == protocol_page.PAGE.read_text(encoding="utf-8"), "make schema"


def test_every_message_can_be_imported_with_its_type():
    typed = set(re.findall(r"^class (\w+)\(Message\):", STUB.read_text(), re.MULTILINE))
    assert typed == set(schema.MESSAGES)
    assert all(getattr(messages, name) is cls for name, cls in schema.MESSAGES.items())


def test_message_names_are_unique():
    written = [
        name
        for file in PROTO.rglob("*.proto")
        for name in re.findall(r"^message (\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(written) == sorted(schema.MESSAGES)


def test_services_have_the_declared_methods_and_call_types():
    kinds = {
        method.path: (method.request.DESCRIPTOR.name, method.streams_requests, method.response.DESCRIPTOR.name, method.streams_responses)
        for service in schema.SERVICES
        for method in service.methods.values()
    }  # fmt: skip
    assert kinds == {
        "/jobherd.worker.v1.WorkerService/Work": ("WorkRequest", True, "WorkResponse", True),
        "/jobherd.worker.v1.DispatchService/StreamJobs": ("StreamJobsRequest", False, "StreamJobsResponse", True),
        "/jobherd.worker.v1.DispatchService/ReportResult": ("ReportResultRequest", False, "ReportResultResponse", False),
        "/jobherd.worker.v1.DispatchService/Heartbeat": ("HeartbeatRequest", False, "HeartbeatResponse", False),
        "/jobherd.worker.v1.DispatchService/ClaimJobs": ("ClaimJobsRequest", False, "ClaimJobsResponse", False),
        "/jobherd.worker.v1.ProducerService/Enqueue": ("EnqueueRequest", False, "EnqueueResponse", False),
        "/jobherd.worker.v1.ProducerService/EnqueueStream": ("EnqueueStreamRequest", True, "EnqueueStreamResponse", True),
        "/jobherd.worker.v1.ProducerService/GetJob": ("GetJobRequest", False, "GetJobResponse", False),
        "/jobherd.worker.v1.ProducerService/CancelJob": ("CancelJobRequest", False, "CancelJobResponse", False),
        "/grpc.health.v1.Health/Check": ("HealthCheckRequest", False, "HealthCheckResponse", False),
        "/grpc.health.v1.Health/Watch": ("HealthCheckRequest", False, "HealthCheckResponse", True),
    }  # fmt: skip


@pytest.mark.parametrize("name", schema.MESSAGES)
@settings(max_examples=10)
@given(data=st.data())
def test_message_survives_encoding_and_decoding(name, data):
    cls = schema.MESSAGES[name]
    sent = data.draw(filled(cls))
    assert cls.FromString(sent.SerializeToString()) == sent


@settings(max_examples=1000)
@given(name=names, content=st.binary(max_size=200))
def test_random_bytes_decode_or_raise_a_decoding_error(name, content):
    try:
        found = schema.MESSAGES[name].FromString(content)
    except messages.DECODE_ERRORS:
        return
    assert schema.MESSAGES[name].FromString(found.SerializeToString()).SerializeToString() == found.SerializeToString()


@settings(max_examples=300)
@given(name=names, data=st.data())
def test_corrupted_message_decodes_or_raises_a_decoding_error(name, data):
    cls = schema.MESSAGES[name]
    content = bytearray(data.draw(filled(cls)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        cls.FromString(bytes(content))
    except messages.DECODE_ERRORS:
        return


def varint(number: int) -> bytes:
    return bytes([number % 128 + 128]) + varint(number // 128) if number > 127 else bytes([number])


def test_unknown_field_of_a_later_version_is_ignored():
    sent = messages.Ready(number=7, count=3).SerializeToString() + varint(900 << 3 | 2) + b"\x05later"
    assert (messages.Ready.FromString(sent).number, messages.Ready.FromString(sent).count) == (7, 3)


def test_unknown_event_of_a_later_version_reads_as_none():
    later = messages.WorkResponse.FromString(varint(900 << 3 | 2) + b"\x05later")
    assert later.WhichOneof("event") is None


def test_unknown_outcome_of_a_later_version_reads_as_none():
    later = messages.Result.FromString(
        messages.Result(task_id=1, claim=2).SerializeToString() + varint(900 << 3 | 2) + b"\0"
    )
    assert (later.task_id, later.claim, later.WhichOneof("outcome")) == (1, 2, None)


def test_unknown_enum_value_of_a_later_version_stays_a_number():
    later = messages.Cancel.FromString(messages.Cancel(reason=900).SerializeToString())
    assert later.reason == 900
    assert later.reason not in messages.Cancel.Reason.values()


def test_invalid_utf_8_raises_a_decoding_error():
    with pytest.raises(messages.DECODE_ERRORS):
        messages.Hello.FromString(b"\x0a\x01\xff")


def test_schema_does_not_register_in_the_default_descriptor_pool():
    """A handler may load another version of the health protocol."""
    from google.protobuf.descriptor_pool import Default

    with pytest.raises(KeyError):
        Default().FindFileByName("grpc/health/v1/health.proto")
    assert schema.POOL.FindFileByName("grpc/health/v1/health.proto") is not None


def test_unset_field_is_distinguished_from_zero():
    """Nack without a delay uses the backoff of the kind; Nack with delay 0 retries at once."""
    assert not messages.Nack.FromString(messages.Nack().SerializeToString()).HasField("delay_seconds")
    assert messages.Nack.FromString(messages.Nack(delay_seconds=0).SerializeToString()).HasField("delay_seconds")
    policy = messages.KindPolicy.FromString(messages.KindPolicy(keep_completed_days=0).SerializeToString())
    assert policy.HasField("keep_completed_days")
    assert not policy.HasField("keep_failed_days")
