-- Grant the privileges of each role. Anything not listed here is allowed only to the owner of the schema; other
-- grants to these roles are revoked. Run by `migrate` at the end of its transaction, so privileges on new
-- objects of a migration belong here. The letters are those of psql's \dp: r SELECT, a INSERT, w UPDATE, d
-- DELETE, U USAGE, X EXECUTE. Roles belong to the whole server and have no password: login roles become their
-- members.
DO $$
DECLARE
    ours  CONSTANT text := split_part('jobherd.grants', '.', 1);  -- the schema this text was loaded for
    roles CONSTANT text[] := '{jobherd_enqueue,jobherd_work,jobherd_read,jobherd_admin}';
    word  CONSTANT jsonb := '{"r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE", "U": "USAGE", "X": "EXECUTE"}';
    who   text;
    one   record;
    place integer;
    given text;
BEGIN
    FOREACH who IN ARRAY roles LOOP
        CONTINUE WHEN to_regrole(who) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', who);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;  -- Race: a session in another database of this server created it
            WHEN insufficient_privilege THEN NULL;  -- list_missing_roles.sql reports it
        END;
    END LOOP;
    -- New functions can be called by every role, and some run as the owner.
    FOR one IN SELECT p.oid::regprocedure AS called FROM pg_proc p WHERE p.pronamespace = ours::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one.called);
    END LOOP;
    -- These run as the caller, which needs the privileges on what they use, or are limited to the caller's
    -- tenants.
    FOR one IN
        SELECT p.oid::regprocedure AS called FROM pg_proc p
         WHERE p.pronamespace = ours::regnamespace
           AND p.proname IN ('enqueue', 'enqueue_bytes', 'enqueue_with', 'notify', 'demand', 'extras_of', 'default_tenant', 'own_tenants', 'is_confined',
                             'check_tenant', 'check_traceparent', 'check_webhook', 'hostile_path', 'cancel', 'cancel_as', 'cancel_own', 'retry',
                             'retry_as', 'retry_own', 'enqueue_unique', 'enqueue_keyed', 'enqueue_after', 'start_flow', 'extend_flow', 'seal_flow', 'cancel_flow', 'cancel_own_flow', 'retry_flow', 'retry_own_flow',
                             'unique_rule', 'unique_fields', 'seconds_of', 'lane_of',
                             'with_partition', 'signal', 'signal_job', 'is_tenant', 'partition_of', 'is_large_job_allowed')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', one.called);
    END LOOP;
    FOR place IN 1..4 LOOP
        who := roles[place];
        CONTINUE WHEN to_regrole(who) IS NULL;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', ours, who);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', ours, who);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %I FROM %I', ours, who);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM %I', ours, who);
        FOR one IN
            SELECT m.name, m.may[place] AS may, c.relkind
              FROM (VALUES
                    -- table             enqueue  work   read  admin
                    ('ready',           '{-,      rawd,  r,    rawd}'::text[]),
                    ('scheduled',       '{-,      rawd,  r,    rawd}'),
                    ('parked',          '{-,      rawd,  r,    rwd}'),
                    ('blocked',         '{-,      rawd,  r,    rawd}'),
                    ('edges',           '{-,      rawd,  r,    rwd}'),
                    ('ends',            '{-,      rawd,  r,    rawd}'),
                    ('flows',           '{-,      rawd,  r,    rw}'),
                    ('results',         '{-,      rawd,  r,    r}'),
                    ('waiting',         '{-,      r,     r,    r}'),
                    ('running',         '{-,      rawd,  r,    r}'),
                    ('cancels',         '{-,      rawd,  r,    rad}'),
                    ('history',         '{-,      rawd,  r,    rad}'),
                    ('history_default', '{-,      -,     r,    r}'),
                    ('attempts',        '{-,      rawd,  r,    rad}'),
                    ('attempts_default', '{-,     -,     r,    r}'),
                    ('logs',            '{-,      rawd,  r,    rd}'),
                    ('steps',           '{-,      rawd,  r,    rd}'),
                    ('signals',         '{-,      rawd,  r,    r}'),
                    ('waits',           '{-,      rawd,  r,    r}'),
                    ('progress',        '{-,      rawd,  r,    r}'),
                    ('demands',         '{-,      rawd,  r,    rawd}'),
                    ('kinds',           '{r,      rawd,  r,    r}'),
                    ('gates',           '{-,      rawd,  r,    rawd}'),
                    ('buckets',         '{-,      rawd,  r,    r}'),
                    ('claim_locks',     '{-,      rawd,  r,    r}'),
                    ('supervisors',     '{-,      rawd,  r,    r}'),
                    ('children',        '{-,      rawd,  r,    r}'),
                    ('extensions',      '{-,      rawd,  r,    r}'),
                    ('enqueue_keys',    '{-,      rawd,  r,    r}'),
                    ('keys',            '{-,      rawd,  r,    raw}'),
                    ('schedules',       '{-,      rawd,  r,    rawd}'),
                    ('ticks',           '{-,      rawd,  r,    rawd}'),
                    ('declarations',    '{-,      rawd,  r,    r}'),
                    ('fleet_commands', '{-,      rwd,   r,    rawd}'),
                    ('audit',           '{-,      r,     r,    r}'),
                    ('bulks',           '{-,      r,     r,    rawd}'),
                    ('dashboard_secrets', '{-,      rad,   -,    rad}'),
                    ('dashboard_logouts', '{-,      rad,   -,    rad}'),
                    ('table_ends',      '{-,      rad,   r,    r}'),
                    ('rollup',          '{-,      rawd,  r,    r}'),
                    ('rollup_failures', '{-,      rawd,  r,    r}'),
                    ('rollup_scopes',   '{-,      rawd,  r,    r}'),
                    ('rollup_times',    '{-,      rawd,  r,    r}'),
                    ('rollup_gaps',     '{-,      rawd,  r,    r}'),
                    ('rollup_mark',     '{-,      rawd,  r,    r}'),
                    ('migrations',      '{r,      r,     r,    r}'),
                    ('tenants',         '{-,      -,     -,    -}'),
                    ('jobs',            '{-,      r,     r,    rd}'),
                    ('limits',        '{-,      r,     r,    r}'),
                    ('tenant_jobs',     '{-,      -,     -,    -}'),
                    ('job_ids',         '{U,      rU,    r,    rU}'),
                    ('tokens',          '{-,      U,     -,    -}')) AS m (name, may)
              JOIN pg_class c ON c.relname = m.name AND c.relnamespace = ours::regnamespace
             WHERE m.may[place] <> '-'
        LOOP
            SELECT string_agg(word ->> letter, ', ') INTO given FROM regexp_split_to_table(one.may, '') AS letter;
            EXECUTE format('GRANT %s ON %s %I.%I TO %I', given, CASE one.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, ours, one.name, who);
        END LOOP;
        FOR one IN
            SELECT p.oid::regprocedure AS called
              FROM (VALUES
                    -- function           enqueue work read admin
                    ('backfill_schedule', '{-, -, -, X}'::text[]),
                    ('change_timing',     '{-, -, -, X}'),
                    ('add_nodes',         '{-, -, -, -}'),
                    ('bind_results',      '{-, X, -, -}'),
                    ('check_producer',    '{-, -, -, -}'),
                    ('delete_flows',      '{-, X, -, -}'),
                    ('insert_node',       '{-, X, -, -}'),
                    ('members_from',      '{-, X, -, X}'),
                    ('recount_flow',      '{-, X, -, X}'),
                    ('unmap_node',        '{-, X, -, X}'),
                    ('without_results',   '{-, X, -, X}'),
                    ('check_node',        '{-, -, -, -}'),
                    ('check_upstreams',   '{-, X, -, X}'),
                    ('fail_blocked',      '{-, X, -, -}'),
                    ('find_vanished_members', '{-, X, -, -}'),
                    ('find_vanished_upstreams', '{-, X, -, -}'),
                    ('node_job',          '{-, -, -, -}'),
                    ('reject_node',       '{-, -, -, -}'),
                    ('check_schedule_options', '{-, -, -, X}'),
                    ('claim_gated',       '{-, X, -, -}'),
                    ('correct_buckets',   '{-, X, -, -}'),
                    ('count_ended',       '{-, X, -, -}'),
                    ('count_lane',        '{-, X, X, X}'),
                    ('count_past',        '{-, X, -, -}'),
                    ('count_running',     '{-, X, X, X}'),
                    ('declare_postponed', '{-, X, -, -}'),
                    ('declare_schedules', '{-, X, -, -}'),
                    ('default_burst',     '{-, X, X, X}'),
                    ('delete',            '{-, -, -, X}'),
                    ('demand_own',        '{X, X, -, X}'),
                    ('demand_for_workers', '{-, X, X, X}'),
                    ('drop_audit',        '{-, X, -, -}'),
                    ('enable_webhooks',   '{-, X, -, -}'),
                    ('end_dashboard_sessions', '{-, -, -, X}'),
                    ('end_session',       '{-, X, -, -}'),
                    ('failed_runs',       '{-, X, -, -}'),
                    ('fair',              '{-, -, -, X}'),
                    ('find_schedule',     '{-, -, -, X}'),
                    ('forget_opening',    '{-, X, -, -}'),
                    ('gate_as_target',    '{-, X, -, X}'),
                    ('gate_of',           '{-, X, X, X}'),
                    ('hold_session',      '{-, X, -, -}'),
                    ('host_of',           '{-, X, -, -}'),
                    ('holds_key',         '{-, X, -, X}'),
                    ('is_other_timing',   '{-, X, -, X}'),
                    ('is_unfinished',     '{-, X, X, X}'),
                    ('is_wanted',         '{-, X, X, X}'),
                    ('keep_partitions',   '{-, X, -, -}'),
                    ('kept_days',         '{-, X, -, -}'),
                    ('lane_is_shut',      '{-, X, -, -}'),
                    ('lane_waits',        '{-, X, X, X}'),
                    ('limit',             '{-, -, -, X}'),
                    ('limit_each',        '{-, -, -, X}'),
                    ('limit_each_rate',   '{-, -, -, X}'),
                    ('lock_lane',         '{-, X, -, -}'),
                    ('lock_limit',        '{-, X, -, -}'),
                    ('mark_upstreams',    '{-, X, -, -}'),
                    ('meet_settlements',  '{-, X, X, X}'),
                    ('next_opening',      '{-, X, -, -}'),
                    ('next_turn',         '{-, X, -, -}'),
                    ('note_audit',        '{-, -, -, X}'),
                    ('note_opening',      '{-, X, -, -}'),
                    ('note_turn',         '{-, X, -, -}'),
                    ('note_unless_noted', '{-, X, -, X}'),
                    ('note_visit',        '{-, X, -, X}'),
                    ('return_parked',     '{-, X, -, -}'),
                    ('send_fleet_command', '{-, -, -, X}'),
                    ('opened_lanes',      '{-, X, -, -}'),
                    ('pace_of',           '{-, X, X, X}'),
                    ('parse_rate',        '{-, -, -, X}'),
                    ('pass_on',           '{-, X, -, -}'),
                    ('pause',             '{-, -, -, X}'),
                    ('pause_failing',     '{-, X, -, -}'),
                    ('pause_schedule',    '{-, -, -, X}'),
                    ('pick_below',        '{-, X, -, -}'),
                    ('pick_from_lane',    '{-, X, -, -}'),
                    ('pick_from',         '{-, X, -, -}'),
                    ('pick_in_turn',      '{-, X, -, -}'),
                    ('pick_unlaned',      '{-, X, -, -}'),
                    ('plan_schedules',    '{-, X, -, -}'),
                    ('queue_of',          '{-, -, -, X}'),
                    ('rank_queue',        '{-, X, X, X}'),
                    ('record_step',       '{-, X, -, -}'),
                    ('reprioritize',      '{-, -, -, X}'),
                    ('requeue',           '{-, X, -, -}'),
                    ('reschedule',        '{-, -, -, X}'),
                    ('reset_schedule',    '{-, -, -, X}'),
                    ('resolve_ends',      '{-, X, -, -}'),
                    ('resolve_flow',      '{-, X, -, -}'),
                    ('seal_lock',         '{-, X, -, -}'),
                    ('resolve_flows',     '{-, X, -, -}'),
                    ('result_of',         '{-, X, -, -}'),
                    ('resume',            '{-, X, -, X}'),
                    ('sketch',            '{-, -, -, -}'),
                    ('spawn_children',    '{-, X, -, -}'),
                    ('stop_members',      '{-, X, -, -}'),
                    ('with_argument',     '{-, X, -, -}'),
                    ('with_item',         '{-, X, -, -}'),
                    ('resume_schedule',   '{-, -, -, X}'),
                    ('retire_schedules',  '{-, X, -, -}'),
                    ('retry_edited',      '{-, -, -, X}'),
                    ('rollup_quantile',   '{-, X, X, X}'),
                    ('room_in_lane',      '{-, X, -, -}'),
                    ('room_of',           '{-, X, -, -}'),
                    ('run_schedule',      '{-, -, -, X}'),
                    ('schedule',          '{-, -, -, X}'),
                    ('schedules_due_in',  '{-, X, X, X}'),
                    ('session_started',   '{-, X, -, -}'),
                    ('set_limit',         '{-, -, -, X}'),
                    ('set_shard',         '{-, -, -, -}'),
                    ('share_of',          '{-, X, -, -}'),
                    ('show_each',         '{-, X, X, X}'),
                    ('show_rate',         '{-, X, X, X}'),
                    ('show_weights',      '{-, X, X, X}'),
                    ('start_run',         '{-, X, -, -}'),
                    ('sweep_children',    '{-, X, -, -}'),
                    ('sweep_keys',        '{-, X, -, -}'),
                    ('sweep_steps',       '{-, X, -, -}'),
                    ('sweep_waits',       '{-, X, -, -}'),
                    ('match_signals',     '{-, X, -, -}'),
                    ('take_key',          '{-, X, -, X}'),
                    ('take_lane_token',   '{-, X, -, -}'),
                    ('take_tokens',       '{-, X, -, -}'),
                    ('tell_sleepers',     '{-, X, -, X}'),
                    ('tell_waiters',      '{-, X, -, X}'),
                    ('tend_schedules',    '{-, X, -, -}'),
                    ('tick',              '{-, X, -, -}'),
                    ('token_step',        '{-, X, X, X}'),
                    ('tokens_of',         '{-, X, X, X}'),
                    ('holder_of',         '{-, -, -, -}'),
                    ('turn_setting',      '{-, X, -, -}'),
                    ('unique_part',       '{-, -, -, -}'),
                    ('unschedule',        '{-, -, -, X}'),
                    ('weight_of',         '{-, X, -, -}')) AS m (name, may)
              JOIN pg_proc p ON p.proname = m.name AND p.pronamespace = ours::regnamespace
             WHERE m.may[place] = 'X'
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', one.called, who);
        END LOOP;
        -- The tables of the example application are for its handlers to write and for other roles to read.
        FOR one IN SELECT c.relname, c.relkind FROM pg_class c
                    WHERE c.relnamespace = ours::regnamespace AND c.relname LIKE 'forge\_%' AND c.relkind IN ('r', 'p', 'v') LOOP
            CONTINUE WHEN who = 'jobherd_enqueue';
            EXECUTE format('GRANT %s ON TABLE %I.%I TO %I', CASE who WHEN 'jobherd_work' THEN 'SELECT, INSERT, UPDATE, DELETE' ELSE 'SELECT' END,
                           ours, one.relname, who);
        END LOOP;
        -- Once there are tenants, row security must not hide jobs from the roles that manage all of them.
        FOREACH given IN ARRAY '{ready,scheduled,history}'::text[] LOOP
            CONTINUE WHEN who = 'jobherd_enqueue' AND given = 'history' OR EXISTS (SELECT FROM pg_policies p WHERE p.schemaname = ours AND p.tablename = given AND p.policyname = who);
            EXECUTE format('CREATE POLICY %I ON %I.%I TO %I USING (true)', who, ours, given, who);  -- the privileges limit what it may do with them
        END LOOP;
    END LOOP;
    -- The columns that an enqueue sets, without the id: a producer that chose ids could create a second job with
    -- one id, or make the next enqueue of other producers fail.
    -- The columns that an INSERT returns, and those that decide whether to wake the maintenance process; no
    -- payload.
    IF to_regrole('jobherd_enqueue') IS NOT NULL THEN
        EXECUTE format('GRANT INSERT (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras,'
                       ' lane) ON %1$I.ready, %1$I.scheduled TO jobherd_enqueue', ours);
        EXECUTE format('GRANT SELECT (id) ON %I.ready TO jobherd_enqueue', ours);
        EXECUTE format('GRANT SELECT (id, run_at) ON %I.scheduled TO jobherd_enqueue', ours);
    END IF;
END $$
