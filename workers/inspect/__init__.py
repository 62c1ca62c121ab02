"""Shows what a running job does.

Stacks, flame graphs, live output, and the reasons for a job's state.

It reads and explains. It must not change a job.
"""
