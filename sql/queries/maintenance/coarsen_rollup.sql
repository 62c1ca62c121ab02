-- Merge slices of %(step)s seconds that are older than %(older)s seconds into slices of %(coarser)s seconds. Run
-- by maintenance processes, seldom. A job that is counted late creates a fine slice again, which the next run
-- adds to the coarse one: the totals stay correct. One run merges the oldest 24 coarse slices. Cost: all at once,
-- a week of one-minute slices, as after the first count of a history, took seconds, in which no job became due.
WITH until AS MATERIALIZED (
    SELECT least(date_bin(make_interval(secs => %(coarser)s::integer), clock_timestamp() - make_interval(secs => %(older)s::integer),
                          '2000-01-01 00:00:00+00'),
                 (SELECT date_bin(make_interval(secs => %(coarser)s::integer), min(r.at), '2000-01-01 00:00:00+00')
                    FROM jobherd.rollup r WHERE r.step = %(step)s::integer) + make_interval(secs => 24 * %(coarser)s::integer)) AS at
), slices AS (
    DELETE FROM jobherd.rollup WHERE step = %(step)s::integer AND at < (SELECT at FROM until) RETURNING *
), times AS (
    DELETE FROM jobherd.rollup_times WHERE step = %(step)s::integer AND at < (SELECT at FROM until) RETURNING *
), failures AS (
    DELETE FROM jobherd.rollup_failures WHERE step = %(step)s::integer AND at < (SELECT at FROM until) RETURNING *
), scopes AS (
    DELETE FROM jobherd.rollup_scopes WHERE step = %(step)s::integer AND at < (SELECT at FROM until) RETURNING *
), coarse AS (
    INSERT INTO jobherd.rollup AS r (at, kind, step, completed, failed, cancelled, expired, started, ran, waited, cpu, memory, retried)
    SELECT date_bin(make_interval(secs => %(coarser)s::integer), s.at, '2000-01-01 00:00:00+00') AS begins, s.kind, %(coarser)s::integer,
           sum(s.completed), sum(s.failed), sum(s.cancelled), sum(s.expired), sum(s.started), sum(s.ran), sum(s.waited), sum(s.cpu), max(s.memory), sum(s.retried)
      FROM slices s
     GROUP BY begins, s.kind
     ORDER BY begins, s.kind
    ON CONFLICT (at, kind, step) DO UPDATE
       SET completed = r.completed + excluded.completed, failed = r.failed + excluded.failed, cancelled = r.cancelled + excluded.cancelled,
           expired = r.expired + excluded.expired, started = r.started + excluded.started, ran = r.ran + excluded.ran,
           waited = r.waited + excluded.waited, cpu = r.cpu + excluded.cpu, memory = greatest(r.memory, excluded.memory),
           retried = r.retried + excluded.retried
), coarse_times AS (
    INSERT INTO jobherd.rollup_times AS r (at, kind, step, bucket, ran, waited)
    SELECT date_bin(make_interval(secs => %(coarser)s::integer), t.at, '2000-01-01 00:00:00+00') AS begins, t.kind, %(coarser)s::integer, t.bucket,
           sum(t.ran), sum(t.waited)
      FROM times t
     GROUP BY begins, t.kind, t.bucket
     ORDER BY begins, t.kind, t.bucket
    ON CONFLICT (at, kind, step, bucket) DO UPDATE SET ran = r.ran + excluded.ran, waited = r.waited + excluded.waited
), coarse_failures AS (
    INSERT INTO jobherd.rollup_failures AS r (at, kind, step, state, code, jobs, last_at, last_job)
    SELECT date_bin(make_interval(secs => %(coarser)s::integer), f.at, '2000-01-01 00:00:00+00') AS begins, f.kind, %(coarser)s::integer, f.state,
           f.code, sum(f.jobs), max(f.last_at), max(f.last_job)
      FROM failures f
     GROUP BY begins, f.kind, f.state, f.code
     ORDER BY begins, f.kind, f.state, f.code
    ON CONFLICT (at, kind, step, state, code) DO UPDATE
       SET jobs = r.jobs + excluded.jobs, last_at = greatest(r.last_at, excluded.last_at), last_job = greatest(r.last_job, excluded.last_job)
), coarse_scopes AS (
    INSERT INTO jobherd.rollup_scopes AS r (at, scope, name, step, completed, failed, cancelled, expired, started, ran, waited, retried)
    SELECT date_bin(make_interval(secs => %(coarser)s::integer), s.at, '2000-01-01 00:00:00+00') AS begins, s.scope, s.name, %(coarser)s::integer,
           sum(s.completed), sum(s.failed), sum(s.cancelled), sum(s.expired), sum(s.started), sum(s.ran), sum(s.waited), sum(s.retried)
      FROM scopes s
     GROUP BY begins, s.scope, s.name
     ORDER BY begins, s.scope, s.name
    ON CONFLICT (at, scope, name, step) DO UPDATE
       SET completed = r.completed + excluded.completed, failed = r.failed + excluded.failed, cancelled = r.cancelled + excluded.cancelled,
           expired = r.expired + excluded.expired, started = r.started + excluded.started, ran = r.ran + excluded.ran,
           waited = r.waited + excluded.waited, retried = r.retried + excluded.retried
)
SELECT count(*) FROM slices
