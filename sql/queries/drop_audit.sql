-- Delete up to %(most)s notes of the audit that are older than so many seconds, the oldest first. Run by keepers. Notes are numbered in the order
-- of their time but for a transaction's length, so only the first ones are looked at.
DELETE FROM jobherd.audit
 WHERE id IN (SELECT first.id FROM (SELECT a.id, a.at FROM jobherd.audit a ORDER BY a.id LIMIT %(most)s) AS first
               WHERE first.at < clock_timestamp() - make_interval(secs => %(keep)s::double precision))
