-- Delete up to %(most)s entries of the audit log that are older than %(keep)s seconds, the oldest first. Run by
-- maintenance processes.
SELECT id FROM jobherd.drop_audit(%(keep)s::double precision, %(most)s::integer) AS id
