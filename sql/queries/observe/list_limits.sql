-- List the pauses and limits, and how much of each limit is used. Run on users' request, and by a
-- web process for the metrics.
SELECT g.scope, g.name, g.paused_at IS NOT NULL AS paused, g.paused_at, g.paused_by, g.reason, g.resume_at, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running, g.limited_at, g.limited_by,
       jobherd.show_rate(g) AS rate, g.rate / g.per AS per_second, g.burst, g.rated_by, t.tokens, t.opens_in,
       CASE WHEN g.turns IS NOT NULL
            THEN ARRAY(SELECT w.key || '=' || w.value FROM jsonb_each_text(jobherd.show_weights(g.turns)) AS w ORDER BY w.value::integer DESC, w.key) END
           AS weights,
       jobherd.show_each(g) AS each_running, g.in_order, g.divided_by, jobherd.show_rate(jobherd.pace_of(g, '')) AS each_rate,
       g.each_burst
  FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL
 ORDER BY g.scope, g.name
 LIMIT %(most)s::integer
