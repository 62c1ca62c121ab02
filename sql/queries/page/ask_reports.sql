-- Ask supervisors to say each second what they are at, for so many seconds. Run by a page while somebody looks on, now and then.
SELECT jobherd.order(s.id, 'report', jsonb_build_object('for', %(seconds)s::double precision), 'page') AS id
  FROM jobherd.supervisors s
 WHERE s.id = ANY (%(supervisors)s::bigint[]) AND s.lease_until > clock_timestamp()
