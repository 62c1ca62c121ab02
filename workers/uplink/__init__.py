"""The process of `jobherd work` that has the stream to a gateway. It runs no code of users.

Workers and the supervisor reach it over Unix sockets. It loads grpc, and only after the fork.
"""
