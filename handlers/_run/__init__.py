"""A job as its handler sees it: the Job object, its transaction, what it may return or raise, and the call itself."""
