-- The job belongs to one of these tenants.
(extras).tenant = ANY (%(only_tenants)s::text[])
