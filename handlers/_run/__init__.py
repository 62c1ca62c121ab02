"""The job as its handler sees it: the Job object, its transaction, return values and exceptions, and the call."""
