-- Ask the supervisor that runs a job to say each second, for so many seconds, what the job says. Run by a page while somebody looks on.
SELECT jobherd.order(%(supervisor)s::bigint, 'report',
                     jsonb_build_object('for', %(seconds)s::double precision, 'tail', %(id)s::bigint), 'page') AS id
