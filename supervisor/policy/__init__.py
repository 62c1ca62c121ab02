"""Stores facts about the child processes and decides what to do: no system call, no clock.

`slot_table` stores what was reported, `plan` returns actions and state changes and writes nothing, and
`state_changes.apply` stores what was decided. Time is an argument, so tests need neither processes
nor a clock.
"""
