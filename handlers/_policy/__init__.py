"""What a kind asks for: retries, back-off, durations, costs, redaction.

Pure values; no clock and no database.
"""
