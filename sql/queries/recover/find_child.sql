-- Whether a child process is still registered: if it is not, its claims are reclaimed. Run by a worker that has
-- lost a claim.
SELECT id FROM jobherd.children WHERE id = %(child)s
