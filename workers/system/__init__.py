"""Operating system access: /proc, threads, memory, addresses, and failpoints of tests."""
