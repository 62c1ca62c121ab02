"""The gateway: serves remote workers and producers over gRPC. Present if the setting `gateway` is set.

`gateway.py` is the life of the process. `server.py` makes the gRPC server on its address, with the
credentials of `tls.py`. `service.py` says what each service offers the process, and `health.py` is
the health service. `access.py` decides which client is which principal and what it may do,
`access_file.py` keeps its list current, and `authentication.py` admits or rejects a call.
`sessions.py` begins with how the bookkeeping of sessions, tasks and claims fits together, and
`results.py` turns the result of a remote attempt into an outcome.

Names of the protocol that its modules use: a remote worker opens a stream with a Hello and asks for
jobs with a Ready. The gateway answers each Ready with one TaskBatch. A task is one attempt of a job,
and has a lease that a Heartbeat extends. A ResultBatch reports what the tasks returned. A worker that
reconnects attaches its session, perhaps to another gateway. `docs/reference/gateway-protocol.md` describes each
message.

gRPC is imported here only, after the fork: its library starts threads, which a fork does not copy
and whose locks would stay locked. Nothing that a supervisor or worker imports may import it. So the
modules that the supervisor needs to check the settings (`access.py`) do not import gRPC.
"""
