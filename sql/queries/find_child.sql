-- Whether a child is still registered: what it claims is given back behind it if it is not. Run by a child that has lost a claim.
SELECT id FROM jobherd.children WHERE id = %(child)s
