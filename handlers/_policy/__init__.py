"""What a kind declares about its jobs: retries, backoff, durations, costs, redaction.

Pure values: no clock and no database.
"""
