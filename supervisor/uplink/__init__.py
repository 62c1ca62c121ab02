"""The supervisor's way to its jobs in `jobherd work`: over the child process `uplink`, which has the gateway.

Nothing here may wait for an answer, and nothing loads grpc.
"""
