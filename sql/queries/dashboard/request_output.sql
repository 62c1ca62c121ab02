-- Ask the supervisor that runs a job to store the job's live output each second, for a number of seconds. Run by
-- the dashboard while the page is open.
SELECT jobherd.send_fleet_command(%(supervisor)s::bigint, 'report',
                     jsonb_build_object('for', %(seconds)s::double precision, 'tail', %(id)s::bigint), 'dashboard') AS id
