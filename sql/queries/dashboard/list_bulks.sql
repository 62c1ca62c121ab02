-- List the bulk actions, current and recent; those that still run come first.
SELECT b.*, extract(epoch FROM clock_timestamp() - b.moved_at)::double precision AS still_for,
       extract(epoch FROM coalesce(b.ended_at, clock_timestamp()) - b.asked_at)::double precision AS took
  FROM jobherd.bulks b
 ORDER BY b.ended_at IS NOT NULL, b.id DESC
 LIMIT %(most)s
