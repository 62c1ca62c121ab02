-- The job costs nothing: it may join a claim whose budget was calculated before.
%(costs)s::jsonb -> kind IS NULL AND NOT EXISTS (SELECT FROM jobherd.demands d WHERE d.job = id)
