-- The migrations of an area that this database has had.
SELECT version FROM jobherd.migrations WHERE area = %(area)s ORDER BY version
