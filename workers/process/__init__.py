"""A child process as an operating system process: its spec, signals, wake-ups, and state restored after jobs."""
