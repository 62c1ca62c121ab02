-- The job costs no more than %(room)s of each resource that is named there. The cost is stored with the job, or
-- is the one that its kind declares.
NOT EXISTS (
    SELECT
      FROM jsonb_each_text(coalesce((SELECT d.cost FROM jobherd.demands d WHERE d.job = id), %(costs)s::jsonb -> kind)) AS mine (name, amount)
     WHERE mine.amount::numeric > (%(room)s::jsonb ->> mine.name)::numeric
)
