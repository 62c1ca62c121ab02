-- The job is of one of these kinds.
kind = ANY (%(only_kinds)s::text[])
