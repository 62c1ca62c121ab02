"""Payloads, results, errors and outcomes: decoding, conversion, encryption, safe texts.

This package imports no other package of `jobherd.handlers`.
"""
