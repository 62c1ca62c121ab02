"""Payloads, results, errors and outcomes as values: decoding, conversion, encryption, and text that is safe to store.

This package imports no other package of `jobherd.handlers`.
"""
