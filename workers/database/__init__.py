"""A child's session with PostgreSQL: statements in one round trip, errors sorted by what they mean, responses checked.

It knows connections and SQLSTATEs, and no job.
"""
