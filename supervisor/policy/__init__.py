"""What the supervisor knows about its fleet and what it decides: no system call, no clock.

`fleet` and `slot` store facts, `plan` returns actions. Time is an argument, so tests need neither
processes nor a clock.
"""
