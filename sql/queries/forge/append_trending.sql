-- Append a snapshot of the 50 repositories with the most activity in the last %(window)s seconds. Run by
-- trending:compute. A retry of the same job finds its snapshot and adds nothing. Many authors count for more
-- than many commits, and lines count little: one vendored library must not outrank ten people. Without any
-- activity the snapshot is one empty row: it shows that the job has run.
WITH active AS (
    SELECT c.repo, count(*) AS commits, count(DISTINCT c.email) AS authors, sum(c.added + c.deleted) AS lines
      FROM jobherd.forge_commits c
     WHERE c.recorded_at > clock_timestamp() - make_interval(secs => %(window)s::double precision)
     GROUP BY c.repo
), scored AS (
    SELECT a.*, r.name, round((a.authors * 10 + a.commits + ln(1 + a.lines))::numeric, 3)::double precision AS score
      FROM active a JOIN jobherd.forge_repos r ON r.id = a.repo
), best AS (
    SELECT row_number() OVER (ORDER BY score DESC, repo) AS place, repo, name, score, commits, authors, lines
      FROM scored
     ORDER BY score DESC, repo LIMIT 50
)
INSERT INTO jobherd.forge_trending (job, place, repo, name, score, commits, authors, lines)
SELECT %(job)s, place, repo, name, score, commits, authors, lines FROM best
UNION ALL
SELECT %(job)s, 0, NULL, NULL, 0, 0, 0, 0 WHERE NOT EXISTS (SELECT FROM best)
RETURNING place, name, score
