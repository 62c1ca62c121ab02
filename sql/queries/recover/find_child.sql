-- Return whether a child process is still registered: if not, its claims are reclaimed. Run by a worker that has
-- lost a claim.
SELECT id FROM jobherd.children WHERE id = %(child)s
