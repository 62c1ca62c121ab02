-- List flows, the newest first. Run on users' request. Parameters: state and name (null: any), before (id), limit.
-- Columns: of jobherd.flows, without nodes, and asked_at.
SELECT f.id, f.name, f.state, f.pending, f.completed, f.failed, f.cancelled, f.stopping, f.tenant, f.parent_id, f.outer_flow, f.policy, f.version, f.unique_key,
       f.created_at, f.ended_at, f.deadline, clock_timestamp() AS asked_at
  FROM jobherd.flows f
 WHERE f.id < %(before)s::bigint AND (%(state)s::text IS NULL OR f.state = %(state)s::text) AND (%(name)s::text IS NULL OR f.name = %(name)s::text) AND (f.outer_flow IS NULL)
 ORDER BY f.id DESC
 LIMIT %(limit)s::integer
