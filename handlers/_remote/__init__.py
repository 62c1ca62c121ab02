"""The protocol between remote workers and a gateway: `.proto` files, messages and services.

Law: nothing imports this package when `jobherd`, a supervisor or a worker is imported. It loads
protobuf, and `calls` loads grpc. Only clients, the gateway and the process `uplink` need them.
"""
