-- List the migrations of an area that this database has.
SELECT version, name FROM jobherd.migrations WHERE area = %(area)s ORDER BY version
