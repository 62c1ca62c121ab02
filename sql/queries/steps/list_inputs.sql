-- List the next results of a node with many jobs, by the flow that these make: up to 1,000, and up to 4,000,000 bytes behind the
-- first one. Run by workers when a handler asks for them. Parameters: flow, past (the last item that was read). Columns: item, result.
SELECT p.item, p.result
  FROM (SELECT r.item, r.result::text AS result, row_number() OVER (ORDER BY r.item) AS place,
               sum(coalesce(octet_length(r.result::text), 0)) OVER (ORDER BY r.item) AS bytes
          FROM (SELECT item, result FROM jobherd.results WHERE flow = %(flow)s::bigint AND item > %(past)s::integer
                 ORDER BY item LIMIT 1000) AS r) AS p
 WHERE p.place = 1 OR p.bytes <= 4000000
 ORDER BY p.item
