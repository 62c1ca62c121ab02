-- Ready jobs that have come from a delay, a retry or another time: they keep their ids, and stand in front of what a claim that seeks
-- (queries/walks/sought.sql) has behind it. Those that became ready when they were put in have one time for both, and cost this index nothing.
CREATE INDEX ready_came_back ON jobherd.ready (queue, priority, id) WHERE run_at > created_at;
