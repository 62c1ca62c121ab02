-- Flows: how old the ends are that nothing has passed on yet, and members that have vanished.
--
-- A job that is deleted with SQL leaves no end. Its flow would stay open, and jobs would wait for it, indefinitely.
-- Maintenance processes look for such jobs every hour. A vanished job counts as canceled.

ALTER TABLE jobherd.ends ADD COLUMN at timestamptz NOT NULL DEFAULT statement_timestamp();

-- Looks for vanished members of up to `most` open flows behind the flow `past`. Returns the last flow, null after the last page.
--
-- Invariant: `pending` and the rows in `ends` together are the live members, in each snapshot: each statement that moves, adds or
-- ends a member writes both. So one statement reads all of it.
CREATE FUNCTION jobherd.find_vanished_members(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    page bigint[];
BEGIN
    page := array(SELECT f.id FROM jobherd.flows f WHERE f.state = 'open' AND f.id > coalesce(past, 0) ORDER BY f.id LIMIT most);
    INSERT INTO jobherd.ends (flow, state, delta)
    SELECT o.id, 'cancelled', -o.missing::integer
      FROM (SELECT f.id, f.pending + (SELECT coalesce(sum(e.delta), 0) FROM jobherd.ends e WHERE e.flow = f.id)
                   - (SELECT count(*) FROM jobherd.ready r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.parked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.scheduled r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.blocked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE (j.extras).flow = f.id)
                   - (SELECT count(*) FROM jobherd.flows i WHERE i.outer_flow = f.id AND i.state = 'open') AS missing
              FROM jobherd.flows f WHERE f.id = ANY (page) AND f.state = 'open') AS o
     WHERE o.missing > 0;
    RETURN CASE WHEN cardinality(page) >= most THEN page[most] END;
END $$;

-- Looks for vanished jobs among up to `most` jobs behind `past` for which others wait. Returns the last one, null after the last page.
CREATE FUNCTION jobherd.find_vanished_upstreams(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    page bigint[];
BEGIN
    WITH RECURSIVE each (job, place) AS (  -- Cost: one look into the index for each job, however many edges it has
        SELECT min(e.upstream), 1 FROM jobherd.edges e WHERE e.state IS NULL AND e.upstream > coalesce(past, 0)
        UNION ALL
        SELECT (SELECT min(e.upstream) FROM jobherd.edges e WHERE e.state IS NULL AND e.upstream > each.job), place + 1
          FROM each WHERE job IS NOT NULL AND place < most
    )
    SELECT array_agg(job ORDER BY job) INTO page FROM each WHERE job IS NOT NULL;
    INSERT INTO jobherd.ends (flow, job, state, delta)
    SELECT 0, u, coalesce((SELECT f.state FROM jobherd.flows f WHERE f.id = u),
                          (SELECT h.state FROM jobherd.history h WHERE h.id = u ORDER BY h.finished_at DESC LIMIT 1), 'cancelled'), 0
      FROM unnest(page) AS u
     WHERE NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = u) AND NOT EXISTS (SELECT FROM jobherd.scheduled r WHERE r.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.parked r WHERE r.id = u) AND NOT EXISTS (SELECT FROM jobherd.blocked r WHERE r.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j WHERE j.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.flows f WHERE f.id = u AND f.state = 'open')
       AND NOT EXISTS (SELECT FROM jobherd.ends e WHERE e.job = u)
       -- Not marked yet: mark_upstreams decides, for which a job that left no history has completed.
       AND EXISTS (SELECT FROM jobherd.edges e WHERE e.upstream = u AND e.state IS NULL AND e.marked);
    RETURN CASE WHEN cardinality(page) >= most THEN page[most] END;
END $$;
