-- Make up to %(most)s parked jobs ready whose kind has no pause or limit any more. Run by maintenance processes
-- when one has been removed, and every few seconds: a claim that did not see the removal may have parked one
-- more job. A job whose id a ready job has stays until that one is gone, as in promote_due.sql.
WITH RECURSIVE names (kind) AS (
    (SELECT p.kind FROM jobherd.parked p ORDER BY p.kind LIMIT 1)
    UNION ALL
    SELECT (SELECT p.kind FROM jobherd.parked p WHERE p.kind > n.kind ORDER BY p.kind LIMIT 1) FROM names n WHERE n.kind IS NOT NULL
), open AS MATERIALIZED (
    SELECT n.kind FROM names n WHERE NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = n.kind) AND n.kind IS NOT NULL
       AND (SELECT true FROM jobherd.parked p WHERE p.kind = n.kind AND (SELECT true FROM jobherd.ready r WHERE r.id = p.id) IS NULL LIMIT 1)
     LIMIT 1  -- only the first job of each kind is read: a join would read all parked jobs
), back AS MATERIALIZED (
    SELECT p.id
      FROM jobherd.parked p
     WHERE p.kind = (SELECT kind FROM open) AND (SELECT true FROM jobherd.ready r WHERE r.id = p.id) IS NULL
     ORDER BY p.kind, p.queue, p.priority, p.id
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM jobherd.parked WHERE id = ANY (ARRAY(SELECT id FROM back)) RETURNING *
)
INSERT INTO jobherd.ready SELECT * FROM moved
