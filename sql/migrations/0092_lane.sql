-- A lane divides the jobs of a queue, for example by customer, so that claims can take turns between them. The
-- column comes before the feature: a claim moves whole rows, and adding it later would need all workers stopped.
-- Cost: nothing for jobs without a lane.
ALTER TABLE jobherd.ready ADD COLUMN lane text COLLATE "C";      -- and `parked` with it
ALTER TABLE jobherd.scheduled ADD COLUMN lane text COLLATE "C";
CREATE INDEX ready_by_lane ON jobherd.ready (queue, lane, priority, id) WHERE lane IS NOT NULL;
