-- What is to be kept for a day is kept until that day is over: it was dropped as soon as it had begun, so what ended a minute before midnight was gone a minute after it,
-- and whoever waited for it was told that there is no such job. The rest of the function stays as it is.
DO $do$
DECLARE
    body text := pg_get_functiondef('jobherd.keep_partitions(integer, integer)'::regprocedure);
BEGIN
    body := replace(body, $old$right(c.relname, 8) <= to_char(today, 'YYYYMMDD')$old$, $new$right(c.relname, 8) < to_char(today, 'YYYYMMDD')$new$);
    EXECUTE replace(body, 'WHERE drop_on <= %L', 'WHERE drop_on < %L');
END $do$;
