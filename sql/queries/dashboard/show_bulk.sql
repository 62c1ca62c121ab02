-- Show the progress of a bulk action, and the time since it last moved.
SELECT b.*, extract(epoch FROM clock_timestamp() - b.moved_at)::double precision AS still_for,
       extract(epoch FROM coalesce(b.ended_at, clock_timestamp()) - b.asked_at)::double precision AS took
  FROM jobherd.bulks b
 WHERE b.id = %(id)s
