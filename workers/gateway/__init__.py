"""The gateway: serves remote workers and producers over gRPC. Present if the setting `gateway` is set.

`gateway.py` is the life of the process. `server.py` makes the gRPC server on its address, with the
credentials of `tls.py`. `service.py` says what each service offers the process, and `health.py` is
the health service. `access.py` decides which client is which principal and what it may do,
`access_file.py` keeps its list current, and `authentication.py` admits or rejects a call.
`sessions.py` begins with how the bookkeeping of sessions, tasks and claims fits together, and
`results.py` turns the result of a remote attempt into an outcome.

gRPC is imported here only, after the fork: its library starts threads, which a fork does not copy
and whose locks would stay locked. Nothing that a supervisor or worker imports may import it. So the
modules that the supervisor needs to check the settings (`access.py`) do not import gRPC.
"""
