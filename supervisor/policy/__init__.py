"""What the supervisor has stored about its child processes, and what it decides: no system call, no clock.

`slot_table` stores what was reported, `plan` returns actions and state changes and writes nothing, and
`state_changes.apply` stores what was decided. Time is an argument, so tests need neither processes
nor a clock.
"""
