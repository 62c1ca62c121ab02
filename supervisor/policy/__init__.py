"""What the supervisor knows about its fleet and what it decides: no system call, no clock.

`fleet` stores what was reported, `plan` returns actions and marks and writes nothing, and
`marks.apply` stores what was decided. Time is an argument, so tests need neither processes nor a
clock.
"""
