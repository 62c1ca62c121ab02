"""What `jobherd.testing` is made of: one attempt without a database, and recorded jobs."""
