"""Connects the supervisor of `jobherd work` to its child process `uplink`, which connects to a gateway.

Nothing here may wait for an answer, and nothing loads grpc.
"""
