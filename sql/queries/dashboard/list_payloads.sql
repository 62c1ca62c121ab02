-- Return the beginning of the payloads of these jobs, for the rows of the list. Of the kinds %(hidden)s it returns the
-- whole payload: what must be hidden can be anywhere in it. Of a kind that no worker has declared it returns nothing:
-- what must be hidden is not known.
SELECT j.id, j.kind, CASE WHEN j.kind = ANY (%(hidden)s::text[]) THEN j.payload::text ELSE left(j.payload::text, 300) END AS payload
  FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) AND EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = j.kind)
