"""The protocol between remote workers and a gateway: `.proto` files, messages and services.

Invariant: nothing imports this package when `jobherd`, a supervisor or a worker is imported. It loads
protobuf, and `grpc_methods` loads grpc. Only clients, the gateway and the process `uplink` need them.
"""
