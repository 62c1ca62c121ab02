-- Read what a webhook reports of one end of a job, and its URL. Run by the handler of jobs:webhook. No row: that
-- end is no longer in the history.
SELECT (h.extras).webhook AS url,
       json_build_object(
           'id', h.id, 'kind', h.kind, 'queue', h.queue, 'tenant', (h.extras).tenant, 'state', h.state, 'code', h.error_code,
           'attempts', h.attempts, 'created_at', h.created_at, 'finished_at', h.finished_at,
           'result', CASE WHEN octet_length(h.result::text) <= 10000 THEN h.result END,
           'result_omitted', coalesce(octet_length(h.result::text) > 10000, false))::text AS event
  FROM jobherd.history h
 WHERE h.id = %(id)s AND h.finished_at = %(finished_at)s AND (h.extras).webhook IS NOT NULL
