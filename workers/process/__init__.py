"""A child as a process: what it was started with, signals and interruptions, the wake-up, and the state that a job must leave unchanged."""
