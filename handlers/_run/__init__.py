"""The job as its handler sees it: the Job object, transactions, dispositions, and the call."""
