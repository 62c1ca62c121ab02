-- If the last development version before 0.1.0 has migrated the schema, to migration %(last)s named %(last_name)s, record the
-- baseline instead of its migrations: it makes the same schema. Run by `migrate`, before it applies anything.
WITH development AS MATERIALIZED (
    SELECT FROM jobherd.migrations
     WHERE area = 'jobherd' AND version = %(last)s AND name = %(last_name)s
       AND EXISTS (SELECT FROM jobherd.migrations WHERE area = 'jobherd' AND version = 1 AND name <> %(name)s)
       AND NOT EXISTS (SELECT FROM jobherd.migrations WHERE area = 'jobherd' AND version > %(last)s)
), gone AS (
    DELETE FROM jobherd.migrations WHERE area = 'jobherd' AND version > 1 AND EXISTS (SELECT FROM development)
)
UPDATE jobherd.migrations SET name = %(name)s WHERE area = 'jobherd' AND version = 1 AND EXISTS (SELECT FROM development)
