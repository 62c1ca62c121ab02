"""A child process's session with PostgreSQL: statements, error classification, response checks.

It handles connections and SQLSTATEs, and has no concept of a job.
"""
