"""The operating system as children need it: /proc, threads, memory, addresses, and the fault points of tests."""
