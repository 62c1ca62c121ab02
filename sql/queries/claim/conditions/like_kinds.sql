-- The job's kind matches one of these patterns of LIKE.
kind LIKE ANY (%(kind_patterns)s::text[])
