-- Make or edit a schedule. Returns created, changed or unchanged; null if it is to be made and exists, or is to be
-- edited and does not.
SELECT CASE WHEN %(adds)s::boolean <> EXISTS (SELECT FROM jobherd.schedules s WHERE s.name = %(name)s::text)
            THEN jobherd.schedule(%(name)s::text, %(kind)s::text, %(cron)s::text, %(every)s::text, %(tz)s::text,
                                  %(payload)s::jsonb, %(options)s::jsonb, %(actor)s::text, %(reason)s::text) END AS became
