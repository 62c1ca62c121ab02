-- Return the id of a job that ended in the last 10 seconds before %(until)s, or null: about where a search for jobs of that
-- time begins. Run by the dashboard. The id only saves steps: jobs with larger ids can have ended earlier, so they are
-- searched all the same. Needs dashboard/force_block_summaries.sql before it.
SELECT max(near.id) AS id
  FROM (SELECT h.id FROM jobherd.history h
         WHERE h.finished_at >= %(until)s::timestamptz - interval '10 seconds' AND h.finished_at < %(until)s::timestamptz
         LIMIT 5000) AS near
