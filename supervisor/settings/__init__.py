"""Defines the settings of `jobherd run`, reads their values, and generates their documentation.

`definitions` is the only list. A setting that is defined anywhere else would miss the documentation
and the checks.
"""
