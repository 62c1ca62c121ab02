# The types of the protocol's messages, for type checkers. Written by `make schema`: do not edit.
# ruff: noqa: A002, N802

from collections.abc import Iterable
from typing import ClassVar, Literal

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError, Message

DECODE_ERRORS: tuple[type[DecodeError], type[UnicodeDecodeError]]

class HealthCheckRequest(Message):
    service: str
    def __init__(self, *, service: str | None = ...) -> None: ...

class HealthCheckResponse(Message):
    ServingStatus: ClassVar[EnumTypeWrapper]
    UNKNOWN: ClassVar[int]
    SERVING: ClassVar[int]
    NOT_SERVING: ClassVar[int]
    SERVICE_UNKNOWN: ClassVar[int]
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class WorkRequest(Message):
    hello: Hello
    ready: Ready
    results: ResultBatch
    heartbeat: Heartbeat
    progress: Progress
    release: Release
    def __init__(
        self,
        *,
        hello: Hello | None = ...,
        ready: Ready | None = ...,
        results: ResultBatch | None = ...,
        heartbeat: Heartbeat | None = ...,
        progress: Progress | None = ...,
        release: Release | None = ...,
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: str
    ) -> Literal["hello", "ready", "results", "heartbeat", "progress", "release"] | None: ...

class WorkResponse(Message):
    hello_ack: HelloAck
    tasks: TaskBatch
    result_ack: ResultAck
    heartbeat_ack: HeartbeatAck
    cancel: Cancel
    release_rest: ReleaseRest
    drain: Drain
    refusal: Refusal
    def __init__(
        self,
        *,
        hello_ack: HelloAck | None = ...,
        tasks: TaskBatch | None = ...,
        result_ack: ResultAck | None = ...,
        heartbeat_ack: HeartbeatAck | None = ...,
        cancel: Cancel | None = ...,
        release_rest: ReleaseRest | None = ...,
        drain: Drain | None = ...,
        refusal: Refusal | None = ...,
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: str
    ) -> (
        Literal["hello_ack", "tasks", "result_ack", "heartbeat_ack", "cancel", "release_rest", "drain", "refusal"]
        | None
    ): ...

class Hello(Message):
    token: str
    worker_id: str
    session: str
    held: RepeatedCompositeFieldContainer[TaskRef]
    kinds: RepeatedCompositeFieldContainer[KindPolicy]
    client: str
    max_message_bytes: int
    stopping_seconds: float
    def __init__(
        self,
        *,
        token: str | None = ...,
        worker_id: str | None = ...,
        session: str | None = ...,
        held: Iterable[TaskRef] | None = ...,
        kinds: Iterable[KindPolicy] | None = ...,
        client: str | None = ...,
        max_message_bytes: int | None = ...,
        stopping_seconds: float | None = ...,
    ) -> None: ...

class HelloAck(Message):
    worker_id: str
    tenant_id: str
    session: str
    kinds: RepeatedScalarFieldContainer[str]
    queues: RepeatedScalarFieldContainer[str]
    lost: RepeatedCompositeFieldContainer[TaskRef]
    session_seconds: float
    lease_seconds: float
    max_slots: int
    def __init__(
        self,
        *,
        worker_id: str | None = ...,
        tenant_id: str | None = ...,
        session: str | None = ...,
        kinds: Iterable[str] | None = ...,
        queues: Iterable[str] | None = ...,
        lost: Iterable[TaskRef] | None = ...,
        session_seconds: float | None = ...,
        lease_seconds: float | None = ...,
        max_slots: int | None = ...,
    ) -> None: ...

class KindPolicy(Message):
    kind: str
    queue: str
    max_attempts: int
    max_crashes: int
    timeout_seconds: float
    backoff_base_seconds: float
    backoff_factor: float
    backoff_jitter: float
    backoff_max_seconds: float
    keep_completed_days: int
    keep_failed_days: int
    sealed: bool
    priority: int
    max_running: int
    redact: RepeatedScalarFieldContainer[str]
    def __init__(
        self,
        *,
        kind: str | None = ...,
        queue: str | None = ...,
        max_attempts: int | None = ...,
        max_crashes: int | None = ...,
        timeout_seconds: float | None = ...,
        backoff_base_seconds: float | None = ...,
        backoff_factor: float | None = ...,
        backoff_jitter: float | None = ...,
        backoff_max_seconds: float | None = ...,
        keep_completed_days: int | None = ...,
        keep_failed_days: int | None = ...,
        sealed: bool | None = ...,
        priority: int | None = ...,
        max_running: int | None = ...,
        redact: Iterable[str] | None = ...,
    ) -> None: ...

class Ready(Message):
    number: int
    kinds: RepeatedScalarFieldContainer[str]
    queues: RepeatedScalarFieldContainer[str]
    count: int
    lease_seconds: float
    def __init__(
        self,
        *,
        number: int | None = ...,
        kinds: Iterable[str] | None = ...,
        queues: Iterable[str] | None = ...,
        count: int | None = ...,
        lease_seconds: float | None = ...,
    ) -> None: ...

class TaskRef(Message):
    task_id: int
    claim: int
    def __init__(self, *, task_id: int | None = ..., claim: int | None = ...) -> None: ...

class Task(Message):
    id: int
    claim: int
    kind: str
    queue: str
    payload: bytes
    data: bytes
    attempt: int
    max_attempts: int
    crashes: int
    priority: int
    lease_seconds: float
    timeout_seconds: float
    waited_seconds: float
    expires_in_seconds: float
    created_at_micros: int
    run_at_micros: int
    tenant: str
    webhook: str
    traceparent: str
    parent_id: int
    def __init__(
        self,
        *,
        id: int | None = ...,
        claim: int | None = ...,
        kind: str | None = ...,
        queue: str | None = ...,
        payload: bytes | None = ...,
        data: bytes | None = ...,
        attempt: int | None = ...,
        max_attempts: int | None = ...,
        crashes: int | None = ...,
        priority: int | None = ...,
        lease_seconds: float | None = ...,
        timeout_seconds: float | None = ...,
        waited_seconds: float | None = ...,
        expires_in_seconds: float | None = ...,
        created_at_micros: int | None = ...,
        run_at_micros: int | None = ...,
        tenant: str | None = ...,
        webhook: str | None = ...,
        traceparent: str | None = ...,
        parent_id: int | None = ...,
    ) -> None: ...

class TaskBatch(Message):
    ready: int
    tasks: RepeatedCompositeFieldContainer[Task]
    ack: ResultAck
    def __init__(
        self, *, ready: int | None = ..., tasks: Iterable[Task] | None = ..., ack: ResultAck | None = ...
    ) -> None: ...

class Completed(Message):
    result: bytes
    def __init__(self, *, result: bytes | None = ...) -> None: ...

class Failed(Message):
    error: str
    code: str
    traceback: str
    poison: bool
    retry_after_seconds: float
    crash: Crash
    def __init__(
        self,
        *,
        error: str | None = ...,
        code: str | None = ...,
        traceback: str | None = ...,
        poison: bool | None = ...,
        retry_after_seconds: float | None = ...,
        crash: Crash | None = ...,
    ) -> None: ...

class Crash(Message):
    exit_code: int
    signal: int
    post_mortem: bytes
    def __init__(
        self, *, exit_code: int | None = ..., signal: int | None = ..., post_mortem: bytes | None = ...
    ) -> None: ...

class Nack(Message):
    delay_seconds: float
    reason: str
    def __init__(self, *, delay_seconds: float | None = ..., reason: str | None = ...) -> None: ...

class Snooze(Message):
    delay_seconds: float
    def __init__(self, *, delay_seconds: float | None = ...) -> None: ...

class Abandon(Message):
    def __init__(self) -> None: ...

class Cancelled(Message):
    def __init__(self) -> None: ...

class Result(Message):
    task_id: int
    claim: int
    ran_seconds: float
    completed: Completed
    failed: Failed
    nack: Nack
    snooze: Snooze
    abandon: Abandon
    cancelled: Cancelled
    expired: Cancelled
    log: bytes
    usage: bytes
    def __init__(
        self,
        *,
        task_id: int | None = ...,
        claim: int | None = ...,
        ran_seconds: float | None = ...,
        completed: Completed | None = ...,
        failed: Failed | None = ...,
        nack: Nack | None = ...,
        snooze: Snooze | None = ...,
        abandon: Abandon | None = ...,
        cancelled: Cancelled | None = ...,
        expired: Cancelled | None = ...,
        log: bytes | None = ...,
        usage: bytes | None = ...,
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: str
    ) -> Literal["completed", "failed", "nack", "snooze", "abandon", "cancelled", "expired"] | None: ...

class ResultBatch(Message):
    number: int
    results: RepeatedCompositeFieldContainer[Result]
    ready: Ready
    def __init__(
        self, *, number: int | None = ..., results: Iterable[Result] | None = ..., ready: Ready | None = ...
    ) -> None: ...

class ResultAck(Message):
    up_to: int
    refusals: RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, *, up_to: int | None = ..., refusals: Iterable[Refusal] | None = ...) -> None: ...

class Refusal(Message):
    Reason: ClassVar[EnumTypeWrapper]
    REASON_UNSPECIFIED: ClassVar[int]
    REASON_LOST: ClassVar[int]
    REASON_INVALID: ClassVar[int]
    REASON_NOT_ALLOWED: ClassVar[int]
    REASON_UNSTORABLE: ClassVar[int]
    reason: int
    task: TaskRef
    ready: int
    message: str
    def __init__(
        self,
        *,
        reason: int | None = ...,
        task: TaskRef | None = ...,
        ready: int | None = ...,
        message: str | None = ...,
    ) -> None: ...

class Heartbeat(Message):
    number: int
    tasks: RepeatedCompositeFieldContainer[TaskRef]
    extend_seconds: float
    def __init__(
        self, *, number: int | None = ..., tasks: Iterable[TaskRef] | None = ..., extend_seconds: float | None = ...
    ) -> None: ...

class HeartbeatAck(Message):
    number: int
    lost: RepeatedCompositeFieldContainer[TaskRef]
    session_seconds: float
    def __init__(
        self, *, number: int | None = ..., lost: Iterable[TaskRef] | None = ..., session_seconds: float | None = ...
    ) -> None: ...

class Progress(Message):
    task: TaskRef
    fraction: float
    note: str
    data: bytes
    def __init__(
        self,
        *,
        task: TaskRef | None = ...,
        fraction: float | None = ...,
        note: str | None = ...,
        data: bytes | None = ...,
    ) -> None: ...

class Release(Message):
    claim: int
    behind_task_id: int
    def __init__(self, *, claim: int | None = ..., behind_task_id: int | None = ...) -> None: ...

class Cancel(Message):
    Reason: ClassVar[EnumTypeWrapper]
    REASON_UNSPECIFIED: ClassVar[int]
    REASON_CANCELLED: ClassVar[int]
    REASON_TIMEOUT: ClassVar[int]
    REASON_LOST: ClassVar[int]
    task: TaskRef
    reason: int
    def __init__(self, *, task: TaskRef | None = ..., reason: int | None = ...) -> None: ...

class ReleaseRest(Message):
    def __init__(self) -> None: ...

class Drain(Message):
    within_seconds: float
    def __init__(self, *, within_seconds: float | None = ...) -> None: ...

class StreamJobsRequest(Message):
    worker_id: str
    session: str
    held: RepeatedCompositeFieldContainer[TaskRef]
    kinds: RepeatedScalarFieldContainer[str]
    queues: RepeatedScalarFieldContainer[str]
    max_in_flight: int
    lease_seconds: float
    policies: RepeatedCompositeFieldContainer[KindPolicy]
    max_message_bytes: int
    def __init__(
        self,
        *,
        worker_id: str | None = ...,
        session: str | None = ...,
        held: Iterable[TaskRef] | None = ...,
        kinds: Iterable[str] | None = ...,
        queues: Iterable[str] | None = ...,
        max_in_flight: int | None = ...,
        lease_seconds: float | None = ...,
        policies: Iterable[KindPolicy] | None = ...,
        max_message_bytes: int | None = ...,
    ) -> None: ...

class StreamJobsResponse(Message):
    opened: HelloAck
    tasks: TaskBatch
    cancel: Cancel
    drain: Drain
    def __init__(
        self,
        *,
        opened: HelloAck | None = ...,
        tasks: TaskBatch | None = ...,
        cancel: Cancel | None = ...,
        drain: Drain | None = ...,
    ) -> None: ...
    def WhichOneof(self, oneof_group: str) -> Literal["opened", "tasks", "cancel", "drain"] | None: ...

class ReportResultRequest(Message):
    session: str
    results: RepeatedCompositeFieldContainer[Result]
    def __init__(self, *, session: str | None = ..., results: Iterable[Result] | None = ...) -> None: ...

class ReportResultResponse(Message):
    refusals: RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, *, refusals: Iterable[Refusal] | None = ...) -> None: ...

class HeartbeatRequest(Message):
    session: str
    tasks: RepeatedCompositeFieldContainer[TaskRef]
    extend_seconds: float
    def __init__(
        self, *, session: str | None = ..., tasks: Iterable[TaskRef] | None = ..., extend_seconds: float | None = ...
    ) -> None: ...

class HeartbeatResponse(Message):
    lost: RepeatedCompositeFieldContainer[TaskRef]
    session_seconds: float
    def __init__(self, *, lost: Iterable[TaskRef] | None = ..., session_seconds: float | None = ...) -> None: ...

class ClaimJobsRequest(Message):
    worker_id: str
    session: str
    ready: Ready
    wait_seconds: float
    def __init__(
        self,
        *,
        worker_id: str | None = ...,
        session: str | None = ...,
        ready: Ready | None = ...,
        wait_seconds: float | None = ...,
    ) -> None: ...

class ClaimJobsResponse(Message):
    session: str
    tasks: RepeatedCompositeFieldContainer[Task]
    def __init__(self, *, session: str | None = ..., tasks: Iterable[Task] | None = ...) -> None: ...

class NewJob(Message):
    kind: str
    payload: bytes
    data: bytes
    queue: str
    priority: int
    max_attempts: int
    timeout_seconds: float
    delay_seconds: float
    run_at_micros: int
    expires_at_micros: int
    tenant: str
    webhook: str
    traceparent: str
    parent_id: int
    unique: Unique
    cost: Cost
    partition: str
    after: RepeatedScalarFieldContainer[int]
    when: str
    def __init__(
        self,
        *,
        kind: str | None = ...,
        payload: bytes | None = ...,
        data: bytes | None = ...,
        queue: str | None = ...,
        priority: int | None = ...,
        max_attempts: int | None = ...,
        timeout_seconds: float | None = ...,
        delay_seconds: float | None = ...,
        run_at_micros: int | None = ...,
        expires_at_micros: int | None = ...,
        tenant: str | None = ...,
        webhook: str | None = ...,
        traceparent: str | None = ...,
        parent_id: int | None = ...,
        unique: Unique | None = ...,
        cost: Cost | None = ...,
        partition: str | None = ...,
        after: Iterable[int] | None = ...,
        when: str | None = ...,
    ) -> None: ...

class Cost(Message):
    amounts: RepeatedCompositeFieldContainer[Amount]
    def __init__(self, *, amounts: Iterable[Amount] | None = ...) -> None: ...

class Amount(Message):
    resource: str
    amount: float
    def __init__(self, *, resource: str | None = ..., amount: float | None = ...) -> None: ...

class Unique(Message):
    by: RepeatedScalarFieldContainer[str]
    key: str
    per_queue: bool
    during: str
    conflict: str
    collect: str
    for_seconds: float
    debounce_seconds: float
    max_wait_seconds: float
    throttle_seconds: float
    edge: str
    secret_key: str
    def __init__(
        self,
        *,
        by: Iterable[str] | None = ...,
        key: str | None = ...,
        per_queue: bool | None = ...,
        during: str | None = ...,
        conflict: str | None = ...,
        collect: str | None = ...,
        for_seconds: float | None = ...,
        debounce_seconds: float | None = ...,
        max_wait_seconds: float | None = ...,
        throttle_seconds: float | None = ...,
        edge: str | None = ...,
        secret_key: str | None = ...,
    ) -> None: ...

class EnqueueRequest(Message):
    jobs: RepeatedCompositeFieldContainer[NewJob]
    idempotency_key: str
    def __init__(self, *, jobs: Iterable[NewJob] | None = ..., idempotency_key: str | None = ...) -> None: ...

class EnqueueResponse(Message):
    ids: RepeatedScalarFieldContainer[int]
    already_enqueued: bool
    existing: RepeatedScalarFieldContainer[int]
    holder: int
    def __init__(
        self,
        *,
        ids: Iterable[int] | None = ...,
        already_enqueued: bool | None = ...,
        existing: Iterable[int] | None = ...,
        holder: int | None = ...,
    ) -> None: ...

class EnqueueStreamRequest(Message):
    number: int
    jobs: RepeatedCompositeFieldContainer[NewJob]
    idempotency_key: str
    def __init__(
        self, *, number: int | None = ..., jobs: Iterable[NewJob] | None = ..., idempotency_key: str | None = ...
    ) -> None: ...

class EnqueueStreamResponse(Message):
    number: int
    ids: RepeatedScalarFieldContainer[int]
    refused: str
    already_enqueued: bool
    existing: RepeatedScalarFieldContainer[int]
    holder: int
    def __init__(
        self,
        *,
        number: int | None = ...,
        ids: Iterable[int] | None = ...,
        refused: str | None = ...,
        already_enqueued: bool | None = ...,
        existing: Iterable[int] | None = ...,
        holder: int | None = ...,
    ) -> None: ...

class GetJobRequest(Message):
    id: int
    wait_seconds: float
    def __init__(self, *, id: int | None = ..., wait_seconds: float | None = ...) -> None: ...

class GetJobResponse(Message):
    job: bytes
    def __init__(self, *, job: bytes | None = ...) -> None: ...

class CancelJobRequest(Message):
    id: int
    reason: str
    def __init__(self, *, id: int | None = ..., reason: str | None = ...) -> None: ...

class CancelJobResponse(Message):
    state: str
    def __init__(self, *, state: str | None = ...) -> None: ...
