"""What `jobherd.testing` stands on: one attempt of a handler, and the jobs that a test's code enqueues."""
