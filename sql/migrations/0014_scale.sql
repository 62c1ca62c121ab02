-- Nothing looks for single moments of the past: people find jobs by id, and a purge walks along the ids. An index of their ends, entry by entry, was a
-- page and 60 bytes of log for each job that was settled; a summary of each 128 pages serves what asks for a whole span of time.
DROP INDEX jobherd.history_by_end;
CREATE INDEX history_by_end ON jobherd.history USING brin (finished_at) WITH (autosummarize = on);
