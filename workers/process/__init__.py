"""A child process in the operating system: spec, signals, wake-ups, restored process state."""
