"""Mutants of partitions: fair turns, limits of each partition, strict order."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PARTITIONS_SQL = "sql/schema/08_partitions.sql"
LANE_LIMITS_SQL = "sql/schema/17_lane_limits.sql"
LANE_PICKS_SQL = "sql/schema/18_lane_picks.sql"
TURNS_SQL = "sql/schema/19_turns.sql"
CLAIM_GATED_SQL = "sql/schema/20_claim_gated.sql"
CONTROL_SQL = "sql/schema/22_control.sql"
TICKS_SQL = "sql/schema/40_ticks.sql"
LANE = ("tests/sql/test_lanes.py",)
TURNS = ("tests/sql/test_turns.py",)
RATE = ("tests/sql/test_lane_rates.py",)

LANES = (
    Mutant(
        "two claims count the jobs of a lane at the same time",
        LANE_PICKS_SQL,
        "    ELSIF NOT jobherd.lock_lane(place) THEN\n",
        "    ELSIF false THEN\n",
        LANE,
    ),
    Mutant(
        "a claim trusts lanes that it read without a lock",
        LANE_PICKS_SQL,
        "           AND (SELECT jobherd.count_lane(rule, place)) < rule.each_running\n",
        "",
        LANE,
    ),
    Mutant(
        "jobs of claims from before the limit do not count",
        LANE_LIMITS_SQL,
        "               AND (r.claimed_at < coalesce(rule.seen_at + interval '10 s', 'infinity') OR r.limited_kind IS NOT NULL));\n",
        "               AND false);\n",
        LANE,
    ),
    Mutant(
        "strict order takes the next job if the first one is locked",
        LANE_PICKS_SQL,
        "         WHERE r.id = (SELECT h.id FROM jobherd.ready h WHERE h.queue = line AND h.lane = place\n"
        "                        ORDER BY h.priority, h.id LIMIT 1)\n",
        "         WHERE r.queue = line AND r.lane = place\n",
        LANE,
    ),
    Mutant(
        "strict order does not wait for a retry",
        LANE_LIMITS_SQL,
        "                      AND (s.attempts > 0 OR s.last_error IS NOT NULL))\n",
        "                      AND false)\n",
        LANE,
    ),
    Mutant(
        "a worker that skipped a locked lane is not notified of its free slot",
        CLAIM_GATED_SQL,
        "                left_over := jobherd.room_in_lane(rule, batch[1].lane);\n",
        "                left_over := 0;\n",
        LANE,
    ),
    Mutant(
        "a worker that moves to another lane does not notify others of the free slot",
        CLAIM_GATED_SQL,
        "AND jobherd.room_in_lane(rule, left_lane) > 0)) THEN\n",
        "AND false)) THEN\n",
        LANE,
    ),
    Mutant(
        "a worker with a new session does not notify others of the slot that it left",
        CLAIM_GATED_SQL,
        "           AND (left_lane IS NULL\n",
        "           AND (false\n",
        LANE,
    ),
    Mutant(
        "a claim that continues a turn takes its jobs twice",
        TURNS_SQL,
        " OR (resumed AND around AND place = begun)",
        "",
        TURNS,
    ),
    Mutant(
        "canceling a retry for which a lane waited wakes no worker",
        LANE_LIMITS_SQL,
        "        PERFORM jobherd.tell_sleepers(OLD.queue);\n",
        "        PERFORM 1;\n",
        LANE,
    ),
    Mutant(
        "each claim of a session begins at the same lane",
        CLAIM_GATED_SQL,
        "                PERFORM jobherd.note_turn(rule, batch);\n",
        "",
        TURNS,
    ),
    Mutant(
        "a new session begins at the first lane",
        TURNS_SQL,
        "    begun  CONSTANT text := coalesce(spot[1], lpad(to_hex((random() * 4294967295)::bigint), 8, '0'));\n"
        "    place  text := begun;\n    around boolean := false;\n    quota",
        "    begun  CONSTANT text := coalesce(spot[1], '0');\n"
        "    place  text := begun;\n    around boolean := false;\n    quota",
        TURNS,
    ),
    Mutant(
        "a tenant's role chooses its partitions",
        PARTITIONS_SQL,
        "    IF confined AND jobherd.is_tenant() THEN\n",
        "    IF false THEN\n",
        ("tests/sql/test_partitions.py", *LANE),
    ),
    Mutant(
        "a retry by hand leaves the lane",
        "sql/schema/22_control.sql",
        "extras, jobherd.lane_of((extras).partition)\n              FROM over\n            RETURNING 'ready' INTO answer;\n",
        "extras, NULL\n              FROM over\n            RETURNING 'ready' INTO answer;\n",
        ("tests/sql/test_partitions.py",),
    ),
    Mutant(
        "jobs of a claim are stored in the order of the lanes and not of priority and id",
        CLAIM_GATED_SQL,
        "ARRAY(SELECT b FROM unnest(batch) AS b ORDER BY b.priority, b.id)",
        "batch",
        TURNS,
    ),
    Mutant(
        "parked jobs return to their lanes although their kind is at its limit",
        CLAIM_GATED_SQL,
        "        IF next.kind IS NOT NULL THEN\n            SELECT * INTO held, had",
        "        IF next.kind IS NOT NULL AND rule.name IS NULL THEN\n            SELECT * INTO held, had",
        TURNS,
    ),
    Mutant(
        "parked jobs wait while jobs of another kind keep arriving",
        CLAIM_GATED_SQL,
        "(c.kind IS NOT NULL AND c.queue = ANY (laned)) DESC, ",
        "",
        TURNS,
    ),
    Mutant(
        "parked jobs return in the order of ids and not in turn",
        LANE_PICKS_SQL,
        "        SELECT array_agg(c.id) INTO first\n",
        "        SELECT ARRAY(SELECT p.id FROM jobherd.parked p WHERE p.kind = wanted_kind ORDER BY p.id LIMIT wanted) INTO first\n",
        TURNS,
    ),
    Mutant(
        "a search through partitions that all wait never ends",
        LANE_PICKS_SQL,
        "concat_ws(' ', place, 0, since, around)",
        "concat_ws(' ', place, 0)",
        LANE,
    ),
    Mutant(
        "a schedule whose payload names an invalid partition ends maintenance processes",
        TICKS_SQL,
        "    EXCEPTION WHEN invalid_parameter_value THEN\n",
        "    EXCEPTION WHEN division_by_zero THEN\n",
        ("tests/sql/test_partitions.py",),
    ),
    Mutant(
        "a retry with another payload loses the partition that the producer set",
        CONTROL_SQL,
        "             THEN (old.extras).partition END,\n",
        "             THEN NULL END,\n",
        ("tests/sql/test_partitions.py",),
    ),
    Mutant(
        "a claim takes no token of the partition",
        CLAIM_GATED_SQL,
        "            PERFORM jobherd.take_lane_token(rule, batch[1].lane);",
        "            PERFORM 1;",
        RATE,
    ),
    Mutant(
        "a claim that takes the last token of a partition does not return when the next one arrives",
        CLAIM_GATED_SQL,
        "left_over = 0 OR rule.each_rate IS NOT NULL)",
        "left_over = 0)",
        RATE,
    ),
    Mutant(
        "a token that arrives during a claim that found none sets no timer",
        LANE_LIMITS_SQL,
        "    since CONSTANT timestamptz := now();\n",
        "    since CONSTANT timestamptz := clock_timestamp();\n",
        RATE,
    ),
    Mutant(
        "partitions whose token has arrived are found only by a search of all lanes",
        LANE_PICKS_SQL,
        "THEN jobherd.opened_lanes(line)\n",
        "THEN '{}'\n",
        RATE,
    ),
    Mutant(
        "a partition's bucket with more used tokens than its burst stays empty",
        LANE_LIMITS_SQL,
        "least(o.used_until, clock_timestamp() + pace.burst * step)",
        "o.used_until",
        RATE,
    ),
    Mutant(
        "each claim tries a partition that no longer waits for a token",
        LANE_PICKS_SQL,
        "        PERFORM jobherd.forget_opening(rule, place);  --",
        "        PERFORM 1;  --",
        RATE,
    ),
    Mutant(
        "a claim does not notify idle workers of other partitions whose tokens have arrived",
        CLAIM_GATED_SQL,
        "OR (rule.each_rate IS NOT NULL AND jobherd.opened_lanes(next.queue) <> '{}')",
        "OR (rule.each_rate IS NOT NULL AND false)",
        RATE,
    ),
)
