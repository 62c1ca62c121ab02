"""Finds the handlers and hooks in the user's folders and modules.

Law: this package runs user code, so no module of the supervisor imports it. It may import all of
`_define`, and no module of `_define` imports it.
"""
