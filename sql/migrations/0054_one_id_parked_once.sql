-- A claim that sets jobs aside for the cap of their kind is not refused because one of them, by raw SQL or since a sequence was set back, has the id of one that is
-- parked already: so was every claim that came to it, of every worker. That one gets another id. The rest of the function stays as it is.
DO $do$
BEGIN
    EXECUTE replace(pg_get_functiondef('jobherd.claim_gated(bigint, bigint, text[], text[], integer, text[], real[], text[], integer[], text, text, bigint[])'::regprocedure),
        ' INSERT INTO jobherd.parked SELECT * FROM gone;', $new$
            INSERT INTO jobherd.parked
            SELECT coalesce((SELECT nextval('jobherd.job_ids') FROM jobherd.parked p WHERE p.id = g.id), g.id), g.created_at, g.run_at, g.good_until,
                   g.timeout, g.last_error, g.priority, g.attempts, g.max_attempts, g.crashes, g.alone, g.queue, g.kind, g.payload, g.extras
              FROM gone g;$new$);
END $do$;
