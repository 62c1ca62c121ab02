"""The settings of `jobherd run`: their definitions, the places they come from, and the page that documents them.

`definitions` is the only list. A setting that is defined anywhere else would miss the documentation and the checks.
"""
