-- What a job costs is amounts, also where it is put in by raw SQL: a text among them refused every claim of every supervisor with a budget, worker after
-- worker, and a negative one made room that is not there. Rows that hold such things go: their jobs cost what their kind does.
DELETE FROM jobherd.demands WHERE jsonb_path_exists(cost, 'strict $.* ? (@.type() != "number" || @ < 0)', '{}', true);

ALTER TABLE jobherd.demands
    DROP CONSTRAINT demands_are_amounts,
    ADD CONSTRAINT demands_are_amounts
        CHECK (jsonb_typeof(cost) = 'object' AND NOT jsonb_path_exists(cost, 'strict $.* ? (@.type() != "number" || @ < 0)', '{}', true));
