-- Ask supervisors to publish a report each second, for a number of seconds. Run by the dashboard from time to
-- time while a page is open.
SELECT jobherd.send_fleet_command(s.id, 'report', jsonb_build_object('for', %(seconds)s::double precision), 'dashboard') AS id
  FROM jobherd.supervisors s
 WHERE s.id = ANY (%(supervisors)s::bigint[]) AND s.lease_until > clock_timestamp()
