-- Partitions: what divides the jobs of a queue, for example by customer.
--
-- The name of a job's partition is in its extras, and stays with the job. Its lane is a hash of that name: claims
-- walk from lane to lane by the index ready_by_lane, and hashes are spread evenly, so a walk can begin anywhere.
-- Enqueue statements take the partition from the payload as the kind declares. COPY cannot, so jobs of such
-- kinds are inserted. Two names have the same lane once in 10^19 pairs: they would share turns and limits.

-- Returns the lane of a partition.
CREATE FUNCTION jobherd.lane_of(partition text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    RETURN substr(encode(sha256(convert_to(partition, 'UTF8')), 'hex'), 1, 16);
END $$;

-- Returns the extras of a job with its partition.
CREATE FUNCTION jobherd.with_partition(job jobherd.extras, partition text)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF partition IS NULL THEN
        RETURN CASE WHEN NOT job IS NULL THEN job END;  -- the column is null, not a row of nulls
    END IF;
    job.partition := partition;
    RETURN job;
END $$;

-- Returns the partition of a job: the named one, or else what the kind declares. Jobs of a role that is limited
-- to its tenants have their tenant as partition: it gets no further turns by dividing its jobs.
-- confined: false if the caller is certainly not such a role.
CREATE FUNCTION jobherd.partition_of(named text, path text[], payload json, tenant text, confined boolean)
RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found text := coalesce(named, CASE WHEN path = '{}' THEN tenant ELSE payload #>> path END);
BEGIN
    IF confined AND jobherd.is_tenant() THEN
        RETURN tenant;
    ELSIF length(found) > 200 OR found ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'jobherd.enqueue: partition % is not a text of at most 200 printable characters',
            quote_literal(left(found, 120))
            USING ERRCODE = 'invalid_parameter_value',
                HINT = CASE WHEN named IS NULL THEN 'The kind takes it from the payload: give the job a shorter value there.'
                            ELSE 'Give a short name, such as the id of a customer.' END;
    END IF;
    RETURN nullif(found, '');
END $$;
