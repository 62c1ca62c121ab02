-- The job is of none of these kinds.
kind <> ALL (%(not_kinds)s::text[])
