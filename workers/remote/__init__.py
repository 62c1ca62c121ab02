"""Runs a worker without a database: its statements become messages to the uplink of its supervisor.

Invariant: nothing here loads grpc, whose threads do not survive the forks of user code. The uplink
(`workers/uplink/`) has the stream to the gateway.
"""
