"""Finds the handlers and hooks in the user's folders and modules.

Invariant: no module of the supervisor imports this package, because it runs user code. It may
import all of `_define`, and no module of `_define` imports it.
"""
