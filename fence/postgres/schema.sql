-- The guard's own schema. Repeatable: it makes what is missing, replaces what is
-- older, and keeps every mark. To be run in one transaction, by a superuser
-- where there is one; what a lesser role cannot make is left out, and the
-- installer's report says what that means.

SET LOCAL client_min_messages = warning;

DO $$
DECLARE
  owner name := (SELECT r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'fence');
  have int;
BEGIN
  IF current_setting('server_version_num')::int < 130000 THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = 'fence: PostgreSQL 13 or later is needed, this is ' || current_setting('server_version');
  END IF;
  IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_owner') THEN
    CREATE ROLE fence_owner NOLOGIN;
  END IF;
  IF owner IS NULL THEN
    CREATE SCHEMA fence;
  ELSIF to_regclass('fence.settings') IS NULL OR to_regclass('fence.high_water') IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = 'fence: there is a schema "fence" that is not this guard''s';
  ELSIF NOT pg_has_role(owner, 'USAGE') THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('fence: the schema "fence" belongs to %I: install as a superuser or as a member of that role', owner);
  ELSE
    EXECUTE 'SELECT version FROM fence.settings' INTO have;
    IF have > 1 THEN
      RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: the installed guard has version %s, this installer knows versions up to 1', have);
    END IF;
  END IF;
END $$;

-- While the guard is rebuilt its own DDL must not be held against it. Nobody
-- else sees the gap: the triggers are back before the transaction commits.
DO $$
DECLARE r record;
BEGIN
  FOR r IN SELECT evtname FROM pg_event_trigger WHERE evtname IN ('fence_ddl', 'fence_drop', 'fence_rewrite') LOOP
    EXECUTE format('DROP EVENT TRIGGER %I', r.evtname);
  END LOOP;
END $$;

CREATE TABLE IF NOT EXISTS fence.settings (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version int     NOT NULL,
  -- the mark of every name that has none of its own
  least   bigint  NOT NULL DEFAULT 0 CHECK (least BETWEEN 0 AND 999999999999999)
);
INSERT INTO fence.settings (version) VALUES (1) ON CONFLICT (one) DO UPDATE SET version = excluded.version;

-- The marks. Names are compared byte for byte, hence COLLATE "C" here and
-- wherever a name is compared. They are kept for ever: a mark that is gone lets
-- every old token in again.
CREATE TABLE IF NOT EXISTS fence.high_water (
  resource   text COLLATE "C" PRIMARY KEY CHECK (resource <> '' AND octet_length(resource) <= 512),
  token      bigint NOT NULL CHECK (token BETWEEN 1 AND 999999999999999),
  holder     text COLLATE "C",
  raised_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  raised_by  text NOT NULL DEFAULT session_user
) WITH (fillfactor = 50);   -- room on the page, so that a raise touches no index

-- Even a superuser, or a member of pg_write_all_data, does not lower a mark by
-- mistake.
CREATE OR REPLACE FUNCTION fence._never_lower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.token >= OLD.token AND NEW.resource = OLD.resource THEN RETURN NEW; END IF;
  RAISE EXCEPTION USING ERRCODE = 'TF006', MESSAGE = 'fence tampering: a mark is never lowered, renamed or deleted', SCHEMA = 'fence', TABLE = 'fence.high_water';
END $$;
DROP TRIGGER IF EXISTS fence_never_lower ON fence.high_water;
CREATE TRIGGER fence_never_lower BEFORE UPDATE OR DELETE ON fence.high_water FOR EACH ROW EXECUTE FUNCTION fence._never_lower();
ALTER TABLE fence.high_water ENABLE ALWAYS TRIGGER fence_never_lower;
DROP TRIGGER IF EXISTS fence_never_empty ON fence.high_water;
CREATE TRIGGER fence_never_empty BEFORE TRUNCATE ON fence.high_water FOR EACH STATEMENT EXECUTE FUNCTION fence._never_lower();
ALTER TABLE fence.high_water ENABLE ALWAYS TRIGGER fence_never_empty;

-- What is guarded: every table, and every partition of it. regclass, because a
-- dump restores it by name; the function as text, because pg_upgrade refuses
-- regprocedure in a user's table.
CREATE TABLE IF NOT EXISTS fence.protected (
  rel      regclass PRIMARY KEY,
  root     regclass NOT NULL,
  relname  text   NOT NULL,
  resource text   NOT NULL,   -- the expression, as it was given
  columns  text[] NOT NULL,   -- the columns that it reads
  functions text[] NOT NULL,  -- the functions, beside the system's, that it calls
  fn       text   NOT NULL,
  mode     text   NOT NULL CHECK (mode IN ('enforce', 'report')),
  writers  text[] NOT NULL
);

-- What report mode would have rejected, in transactions. A transaction only
-- inserts into the queue, so that counting never makes it wait or fail; the
-- queue is folded into the totals now and then.
CREATE TABLE IF NOT EXISTS fence.report (
  rel text, role text, code text,
  transactions bigint NOT NULL, first_at timestamptz NOT NULL, last_at timestamptz NOT NULL,
  PRIMARY KEY (rel, role, code)
);
CREATE TABLE IF NOT EXISTS fence.report_queue (
  rel text NOT NULL, role text NOT NULL, code text NOT NULL, at timestamptz NOT NULL
);

-- SQLSTATE class TF: the standard leaves classes that begin with I to Z to the
-- implementation.
--   TF001 stale token               TF002 no admitted claim of this resource
--   TF003 same token, other holder  TF004 unacceptable token
--   TF005 operation that cannot be fenced      TF006 tampering
CREATE OR REPLACE FUNCTION fence._raise(code text, message text, hint text, resource text, token bigint, high_water bigint, tab text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, HINT = hint, SCHEMA = 'fence', TABLE = coalesce(tab, ''),
    DETAIL = json_build_object('resource', resource, 'token', token, 'high_water', high_water)::text;
END $$;

-- The atomic check and raise. What it locks stays locked until the transaction
-- ends, so that a check and the write that it allows are one:
--   token = mark   FOR SHARE: the holder's own transactions run side by side
--   token > mark   UPDATE: waits for all of those
--   token < mark   TF001
-- FOR SHARE and not FOR KEY SHARE, which the UPDATE would not wait for.
--
-- PostgreSQL grants a share lock past a waiting UPDATE, so writers of the old
-- token could keep the new one out for as long as they overlap. An advisory lock
-- makes a queue of it: the old ones take it shared, a raise that has to wait
-- takes it alone, and who comes later stands behind. It decides nothing.
CREATE OR REPLACE FUNCTION fence._admit(p_resource text, p_token bigint, p_holder text, p_queue boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_holder text COLLATE "C" := nullif(p_holder, '');
  v_lock   int := hashtext(p_resource COLLATE "C");
  v_mark   record;
  v_least  bigint;
BEGIN
  IF p_resource IS NULL OR p_resource = '' COLLATE "C" OR octet_length(p_resource) > 512 THEN
    PERFORM fence._raise('TF004', format('fence unacceptable token=%s resource=%s', p_token, p_resource), 'A resource name is 1 to 512 bytes long.', p_resource, p_token, NULL, NULL);
  ELSIF p_token IS NULL OR p_token < 1 OR p_token > 999999999999999 THEN
    PERFORM fence._raise('TF004', format('fence unacceptable token=%s resource=%s', p_token, p_resource), 'A token is an integer from 1 to 999999999999999.', p_resource, p_token, NULL, NULL);
  ELSIF octet_length(v_holder) > 256 THEN
    PERFORM fence._raise('TF004', format('fence unacceptable holder token=%s resource=%s', p_token, p_resource), 'A holder is at most 256 bytes long.', p_resource, p_token, NULL, NULL);
  END IF;
  LOOP
    -- A look without a lock. Marks never fall, so a larger one is final; any
    -- other answer is looked at again under the lock.
    SELECT h.token, h.holder INTO v_mark FROM fence.high_water h WHERE h.resource = p_resource COLLATE "C";
    IF v_mark.token > p_token THEN
      PERFORM fence._raise('TF001', format('fence stale token=%s high_water=%s resource=%s', p_token, v_mark.token, p_resource), 'A later holder has written here: stop using this token.', p_resource, p_token, v_mark.token, NULL);
    ELSIF v_mark.token = p_token AND (v_mark.holder IS NOT NULL OR v_holder IS NULL) THEN
      IF p_queue THEN PERFORM pg_advisory_xact_lock_shared(1717921379, v_lock); END IF;
      SELECT h.token, h.holder INTO v_mark FROM fence.high_water h WHERE h.resource = p_resource COLLATE "C" FOR SHARE;
      CONTINUE WHEN v_mark.token IS DISTINCT FROM p_token;   -- raised while this waited
      IF v_holder <> v_mark.holder THEN
        PERFORM fence._raise('TF003', format('fence conflict token=%s resource=%s', p_token, p_resource), 'The same token came from another holder: the authority has given it out twice.', p_resource, p_token, v_mark.token, NULL);
      END IF;
      RETURN;
    ELSIF v_mark.token IS NULL THEN
      SELECT s.least INTO v_least FROM fence.settings s FOR SHARE;
      IF p_token < v_least THEN
        PERFORM fence._raise('TF001', format('fence stale token=%s high_water=%s resource=%s', p_token, v_least, p_resource), 'All tokens below this one were shut out by fence raise.', p_resource, p_token, v_least, NULL);
      END IF;
      INSERT INTO fence.high_water (resource, token, holder) VALUES (p_resource, p_token, v_holder) ON CONFLICT (resource) DO NOTHING;
    ELSE
      PERFORM FROM fence.high_water h WHERE h.resource = p_resource COLLATE "C" FOR UPDATE SKIP LOCKED;
      IF NOT FOUND THEN PERFORM pg_advisory_xact_lock(1717921379, v_lock); END IF;
      -- Also the first holder of a mark that was raised without one.
      UPDATE fence.high_water h SET token = p_token, holder = v_holder, raised_at = clock_timestamp(), raised_by = session_user
       WHERE h.resource = p_resource COLLATE "C" AND (h.token < p_token OR h.token = p_token AND h.holder IS NULL);
    END IF;
    IF FOUND THEN RETURN; END IF;   -- else another was first: look again
  END LOOP;
END $$;

-- Claims are kept in settings of the transaction, in 64 of them by a hash of the
-- name, so that a row of a transaction with thousands of claims reads few. Each
-- names its transaction: one left in the session, under a pooler, is no claim.
-- A claim by itself opens nothing, the row guard looks at the mark as well.
CREATE OR REPLACE FUNCTION fence._slot(p_resource text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT 'fence.claims_' || (hashtext(p_resource COLLATE "C") & 63)::text $$;

CREATE OR REPLACE FUNCTION fence._enter(p_resource text, p_token bigint, p_holder text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_slot   text := fence._slot(p_resource);
  v_claims jsonb;
  v_none   boolean;
BEGIN
  v_claims := nullif(current_setting(v_slot, true), '')::jsonb;
  v_none := coalesce(v_claims ->> 'x' <> pg_current_xact_id_if_assigned()::text, true);
  -- One place in the queue for each setting bounds what a bulk transaction
  -- takes of the server's lock table to 64.
  PERFORM fence._admit(p_resource, p_token, p_holder, v_none);
  IF v_none THEN
    v_claims := jsonb_build_object('x', pg_current_xact_id()::text, 'c', jsonb_build_object(p_resource, p_token));
  ELSE
    v_claims := jsonb_set(v_claims, ARRAY['c', p_resource], to_jsonb(p_token));
  END IF;
  PERFORM set_config(v_slot, v_claims::text, true);
END $$;

CREATE OR REPLACE FUNCTION fence.enter(resource text, token bigint, holder text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence._enter(resource, token, holder);
  RETURN token;
END $$;

-- Several resources, in byte order of their names, so that two callers do not
-- deadlock on the marks.
CREATE OR REPLACE FUNCTION fence.enter_many(claims jsonb, holder text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE k text; v jsonb;
BEGIN
  IF jsonb_typeof(claims) IS DISTINCT FROM 'object' OR claims = '{}' THEN
    PERFORM fence._raise('TF004', 'fence unacceptable claims', 'Claims are an object like {"invoices/B-1042": 42}.', NULL, NULL, NULL, NULL);
  END IF;
  FOR k, v IN SELECT key, value FROM jsonb_each(claims) ORDER BY key COLLATE "C" LOOP
    IF jsonb_typeof(v) <> 'number' OR v::text !~ '^[1-9][0-9]{0,14}$' THEN
      PERFORM fence._raise('TF004', format('fence unacceptable token=%s resource=%s', v, k), 'A token is an integer from 1 to 999999999999999.', k, NULL, NULL, NULL);
    END IF;
    PERFORM fence._enter(k, v::bigint, holder);
  END LOOP;
END $$;

-- The apply worker of logical replication writes what was checked where it was
-- first written. backend_type cannot be set by a client.
CREATE OR REPLACE FUNCTION fence._is_apply() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT coalesce((SELECT backend_type LIKE 'logical replication%' FROM pg_stat_get_activity(pg_backend_pid())), false) $$;

CREATE OR REPLACE FUNCTION fence._fold() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF pg_try_advisory_xact_lock(1717921379, -1) THEN
    WITH gone AS (DELETE FROM fence.report_queue RETURNING *)
    INSERT INTO fence.report AS r SELECT rel, role, code, count(*), min(at), max(at) FROM gone GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (rel, role, code) DO UPDATE SET transactions = r.transactions + excluded.transactions,
      first_at = least(r.first_at, excluded.first_at), last_at = greatest(r.last_at, excluded.last_at);
  END IF;
END $$;

-- Counts a transaction once for each table and code. Every 256th folds the
-- queue, unless it is of an isolation level in which that could fail.
CREATE OR REPLACE FUNCTION fence._count(p_rel oid, p_code text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_xid  text := pg_current_xact_id()::text;
  v_seen text := coalesce(current_setting('fence.reported', true), '');
  v_this text := format('/%s:%s', p_rel, p_code);
BEGIN
  IF split_part(v_seen, '/', 1) IS DISTINCT FROM v_xid THEN v_seen := v_xid; END IF;
  IF strpos(v_seen || '/', v_this || '/') > 0 THEN RETURN true; END IF;
  PERFORM set_config('fence.reported', v_seen || v_this, true);
  INSERT INTO fence.report_queue VALUES (
    coalesce((SELECT root::text FROM fence.protected WHERE rel = p_rel::regclass), p_rel::regclass::text),
    coalesce(nullif(current_setting('role'), 'none'), session_user), p_code, clock_timestamp());
  IF v_xid::numeric % 256 = 0 AND current_setting('transaction_isolation') = 'read committed' THEN PERFORM fence._fold(); END IF;
  RETURN true;
END $$;

-- What the guard of a row asks for each name that the row had or has: a claim of
-- this transaction that equals the mark. It never raises a mark, so there is
-- nothing to gain by forging a claim, and no lock to upgrade.
CREATE OR REPLACE FUNCTION fence._check(p_resource text, p_rel oid, p_report boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_claims jsonb;
  v_token  bigint;
  v_mark   bigint;
  v_code   text := 'TF002';
BEGIN
  IF p_resource IS NOT NULL THEN
    v_claims := nullif(current_setting(fence._slot(p_resource), true), '')::jsonb;
    IF v_claims ->> 'x' = pg_current_xact_id()::text THEN
      v_token := v_claims -> 'c' ->> p_resource;
    END IF;
    IF v_token IS NOT NULL THEN
      SELECT h.token INTO v_mark FROM fence.high_water h WHERE h.resource = p_resource COLLATE "C" FOR SHARE;
      IF v_token = v_mark THEN RETURN true; END IF;
      IF v_token < v_mark THEN v_code := 'TF001'; END IF;
    END IF;
  END IF;
  IF p_report THEN RETURN fence._count(p_rel, v_code); END IF;
  IF fence._is_apply() THEN RETURN true; END IF;
  IF v_code = 'TF001' THEN
    RETURN fence._raise(v_code, format('fence stale token=%s high_water=%s resource=%s', v_token, v_mark, p_resource), 'A later holder has written here: stop using this token.', p_resource, v_token, v_mark, p_rel::regclass::text);
  ELSIF p_resource IS NULL THEN
    RETURN fence._raise(v_code, 'fence unclaimed: the row has no resource name', 'The resource expression gives null for this row.', NULL, NULL, NULL, p_rel::regclass::text);
  ELSIF v_token IS NULL THEN
    RETURN fence._raise(v_code, format('fence unclaimed resource=%s', p_resource), 'Call fence.enter(resource, token) in the same transaction, before the write.', p_resource, NULL, NULL, p_rel::regclass::text);
  END IF;
  RETURN fence._raise(v_code, format('fence unclaimed token=%s high_water=%s resource=%s', v_token, v_mark, p_resource), 'The token was not admitted: call fence.enter(resource, token).', p_resource, v_token, v_mark, p_rel::regclass::text);
END $$;

CREATE OR REPLACE FUNCTION fence._no_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (SELECT p.mode FROM fence.protected p WHERE p.rel = TG_RELID::regclass FOR SHARE) = 'report' THEN
    PERFORM fence._count(TG_RELID, 'TF005');
  ELSIF NOT fence._is_apply() THEN
    PERFORM fence._raise('TF005', format('fence refused: TRUNCATE of %s touches every resource', TG_RELID::regclass), 'DELETE the rows of the resources that you hold.', NULL, NULL, NULL, TG_RELID::regclass::text);
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fence._name(p_rel oid) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_rel $$;

-- Why a relation cannot be guarded, or null.
CREATE OR REPLACE FUNCTION fence._unfit(p_rel oid) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN c.relkind = 'f' THEN 'is a foreign table: its rows are written on another server, where this guard does not see it'
    WHEN c.relkind = 'v' THEN 'is a view: guard the tables below it'
    WHEN c.relkind = 'm' THEN 'is a materialized view: it has no rows of its own to write'
    WHEN c.relkind NOT IN ('r', 'p') THEN 'is not a table'
    WHEN c.relpersistence = 'u' THEN 'is UNLOGGED: after a crash its rows are gone and the marks are not'
    WHEN c.relpersistence = 't' THEN 'is a temporary table: no other session writes it'
    WHEN c.relnamespace = 'fence'::regnamespace OR c.relnamespace = 'pg_catalog'::regnamespace OR c.relnamespace = 'information_schema'::regnamespace THEN 'belongs to the system or to the guard'
  END FROM pg_catalog.pg_class c WHERE c.oid = p_rel
$$;

-- What is wrong with the guards as they stand; nothing when all is well.
CREATE OR REPLACE FUNCTION fence.verify() RETURNS TABLE (relation text, problem text) LANGUAGE sql STABLE AS $$
  SELECT * FROM (
    SELECT p.relname, CASE
      WHEN c.oid IS NULL THEN 'the table is gone'
      WHEN fence._unfit(p.rel) IS NOT NULL THEN fence._unfit(p.rel)
      WHEN fence._name(p.rel) <> p.relname THEN 'the table was renamed or moved'
      WHEN p.root <> p.rel AND NOT EXISTS (SELECT FROM pg_partition_ancestors(p.rel) a WHERE a.relid = p.root) THEN 'the partition was detached'
      WHEN g.tgenabled IS NULL THEN 'the row trigger is missing'
      WHEN g.tgfoid IS DISTINCT FROM to_regprocedure(p.fn || '()')::oid THEN 'the row trigger calls another function'
      -- 29 is AFTER INSERT, UPDATE, DELETE FOR EACH ROW
      WHEN g.tgtype <> 29 OR g.tgqual IS NOT NULL OR cardinality(g.tgattr::int2[]) > 0 THEN 'the row trigger does not fire on every write'
      WHEN g.tgenabled <> 'A' THEN 'the row trigger is not ENABLE ALWAYS'
      WHEN t.tgenabled IS NULL THEN 'the truncate trigger is missing'
      WHEN t.tgfoid <> 'fence._no_truncate()'::regprocedure THEN 'the truncate trigger calls another function'
      WHEN t.tgenabled <> 'A' THEN 'the truncate trigger is not ENABLE ALWAYS'
      WHEN EXISTS (SELECT unnest(p.columns) EXCEPT SELECT attname::text FROM pg_attribute WHERE attrelid = p.rel AND attnum > 0 AND NOT attisdropped) THEN 'a column that the resource expression reads is gone or renamed'
    END AS problem
    FROM fence.protected p
    LEFT JOIN pg_class c ON c.oid = p.rel
    LEFT JOIN pg_trigger g ON g.tgrelid = p.rel AND g.tgname = 'fence_row'
    LEFT JOIN pg_trigger t ON t.tgrelid = p.rel AND t.tgname = 'fence_truncate'
    UNION ALL
    SELECT fence._name(i.inhrelid), coalesce(fence._unfit(i.inhrelid), 'the partition or inheriting table is not guarded')
    FROM pg_inherits i JOIN fence.protected p ON p.rel = i.inhparent
    WHERE NOT EXISTS (SELECT FROM fence.protected q WHERE q.rel = i.inhrelid)
  ) v WHERE problem IS NOT NULL
$$;

-- The triggers of one relation below a guarded table, or of the table itself. The
-- row trigger of a partition is PostgreSQL's own clone of the table's.
CREATE OR REPLACE FUNCTION fence._arm(p_rel regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = p_rel AND tgname = 'fence_truncate') THEN
    EXECUTE format('CREATE TRIGGER fence_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fence._no_truncate()', p_rel);
  END IF;
  -- ALWAYS: session_replication_role = replica switches other triggers off.
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = p_rel AND tgname = 'fence_truncate' AND tgenabled <> 'A') THEN
    EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER fence_truncate', p_rel);
  END IF;
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = p_rel AND tgname = 'fence_row' AND tgenabled <> 'A') THEN
    EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER fence_row', p_rel);
  END IF;
END $$;

-- Who may write the table or one of its partitions: whoever has a grant on it or
-- on one of its columns, and its owner. 'public' stands for everybody.
CREATE OR REPLACE FUNCTION fence._granted(p_tab regclass) RETURNS text[] LANGUAGE sql STABLE AS $$
  WITH rels AS (SELECT p_tab::oid AS oid UNION SELECT relid FROM pg_partition_tree(p_tab)),
  acls AS (
    SELECT coalesce(c.relacl, acldefault('r', c.relowner)) AS acl FROM pg_class c JOIN rels USING (oid)
    UNION ALL SELECT a.attacl FROM pg_attribute a JOIN rels ON a.attrelid = rels.oid WHERE a.attacl IS NOT NULL)
  SELECT coalesce(array_agg(DISTINCT role ORDER BY role), '{}') FROM (
    SELECT CASE WHEN x.grantee = 0 THEN 'public' ELSE r.rolname::text END AS role
    FROM acls, aclexplode(acls.acl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
    WHERE x.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
    UNION SELECT r.rolname::text FROM pg_class c JOIN rels USING (oid) JOIN pg_roles r ON r.oid = c.relowner) w
  WHERE role IS NOT NULL
$$;

-- Gives every writer of a guarded table what fence.enter needs, and takes it from
-- those who are none any more.
CREATE OR REPLACE FUNCTION fence._grant_writers() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_writers text[] := (SELECT coalesce(array_agg(DISTINCT w), '{}') FROM fence.protected, unnest(writers) w);
  v_role text;
BEGIN
  FOR v_role IN
    SELECT DISTINCT CASE WHEN x.grantee = 0 THEN 'public' ELSE r.rolname::text END
    FROM pg_proc f, aclexplode(f.proacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
    WHERE f.oid = 'fence.enter(text,bigint,text)'::regprocedure AND x.grantee <> f.proowner
  LOOP
    IF v_role <> ALL (v_writers) THEN
      EXECUTE format('REVOKE EXECUTE ON FUNCTION fence.enter(text, bigint, text), fence.enter_many(jsonb, text) FROM %1$s; REVOKE SELECT ON fence.high_water FROM %1$s', CASE v_role WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(v_role) END);
    END IF;
  END LOOP;
  FOREACH v_role IN ARRAY v_writers LOOP
    IF v_role = 'public' OR to_regrole(quote_ident(v_role)) IS NOT NULL THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION fence.enter(text, bigint, text), fence.enter_many(jsonb, text) TO %1$s; GRANT SELECT ON fence.high_water TO %1$s', CASE v_role WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(v_role) END);
    END IF;
  END LOOP;
END $$;

-- Guards a table, or changes how it is guarded. It waits for the table's open
-- writers and keeps new ones out until it commits, so that none is half-way.
CREATE OR REPLACE FUNCTION fence.protect(tab regclass, resource text, mode text DEFAULT 'enforce', writers text[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text := fence._name(tab);
  v_fn   text := 'fence.guard_' || md5(fence._name(tab));
  v_path text := current_setting('search_path');
  v_role text;
  v_why  text;
  v_index oid;
  v_old text;
  v_new text;
  v_columns text[];
  v_functions oid[];
  v_owner regrole := (SELECT nspowner FROM pg_namespace WHERE nspname = 'fence');
  r record;
BEGIN
  IF mode NOT IN ('enforce', 'report') THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: mode must be enforce or report, not %s', mode);
  END IF;
  v_why := fence._unfit(tab);
  IF v_why IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: %s cannot be guarded: it %s', v_name, v_why);
  END IF;
  EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
  FOR r IN SELECT x.rel, fence._unfit(x.rel) AS why FROM (SELECT tab::oid AS rel UNION SELECT relid FROM pg_partition_tree(tab)) x LOOP
    IF r.why IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: %s cannot be guarded: it %s', fence._name(r.rel), r.why);
    END IF;
  END LOOP;
  IF (SELECT relispartition FROM pg_class WHERE oid = tab) THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: %s cannot be guarded: it is a partition, guard %s', v_name, fence._name(pg_partition_root(tab)));
  END IF;
  IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = tab) AND (SELECT relkind FROM pg_class WHERE oid = tab) = 'r' THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: %s cannot be guarded: other tables inherit from it, and their rows would not be', v_name);
  END IF;
  FOREACH v_role IN ARRAY coalesce(writers, '{}') LOOP
    IF v_role <> 'public' AND to_regrole(quote_ident(v_role)) IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('fence: there is no role %I to be a writer', v_role);
    END IF;
  END LOOP;

  -- An index takes only what is immutable and reads one row, so the server itself
  -- judges the expression, and tells which columns it reads.
  EXECUTE format('CREATE TEMPORARY TABLE fence_probe (LIKE %s) ON COMMIT DROP', tab);
  BEGIN
    EXECUTE format(E'CREATE INDEX fence_probe_i ON pg_temp.fence_probe (((\n%s\n)::text))', resource);
  EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS v_why = MESSAGE_TEXT;
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: the resource expression %s of %s is not usable: %s', resource, v_name, v_why),
      HINT = 'It must be an immutable expression over the columns of one row, like ''invoices/'' || id.';
  END;
  v_index := 'pg_temp.fence_probe_i'::regclass;
  SELECT array_agg(a.attname::text ORDER BY a.attnum) INTO v_columns FROM pg_attribute a
   WHERE a.attrelid = 'pg_temp.fence_probe'::regclass AND a.attnum IN (
     SELECT d.refobjsubid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = v_index AND d.refobjid = a.attrelid AND d.refobjsubid > 0);
  IF v_columns IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: the resource expression %s of %s reads no column', resource, v_name);
  END IF;
  -- The guard's owner evaluates it, and so needs the right to.
  SELECT coalesce(array_agg(f.oid), '{}') INTO v_functions FROM pg_proc f
   WHERE f.pronamespace <> 'pg_catalog'::regnamespace AND f.oid IN (
     SELECT d.refobjid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = v_index AND d.refclassid = 'pg_proc'::regclass
     UNION SELECT o.oprcode FROM pg_depend d JOIN pg_operator o ON o.oid = d.refobjid WHERE d.classid = 'pg_class'::regclass AND d.objid = v_index AND d.refclassid = 'pg_operator'::regclass);
  FOR r IN SELECT n.oid::regnamespace AS ns FROM pg_namespace n WHERE NOT has_schema_privilege(v_owner, n.oid, 'USAGE') AND n.oid IN (
      SELECT f.pronamespace FROM pg_proc f WHERE f.oid = ANY (v_functions)
      UNION SELECT t.typnamespace FROM pg_depend d JOIN pg_type t ON t.oid = d.refobjid WHERE d.classid = 'pg_class'::regclass AND d.objid = v_index AND d.refclassid = 'pg_type'::regclass) LOOP
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', r.ns, v_owner);
  END LOOP;
  FOR r IN SELECT f.oid::regprocedure AS fn FROM pg_proc f WHERE f.oid = ANY (v_functions) AND NOT has_function_privilege(v_owner, f.oid, 'EXECUTE') LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', r.fn, v_owner);
  END LOOP;
  -- As the server understood it, with every name in full, so that no search_path
  -- changes its meaning; once over the old row and once over the new one.
  EXECUTE format(E'CREATE TEMPORARY VIEW fence_probe_o AS SELECT ((\n%s\n)::text) AS fence_resource FROM pg_temp.fence_probe AS fence_old, (SELECT) AS nothing', resource);
  EXECUTE format(E'CREATE TEMPORARY VIEW fence_probe_n AS SELECT ((\n%s\n)::text) AS fence_resource FROM pg_temp.fence_probe AS fence_new, (SELECT) AS nothing', resource);
  PERFORM set_config('search_path', 'pg_catalog', true);
  v_old := fence._select_list('pg_temp.fence_probe_o');
  v_new := fence._select_list('pg_temp.fence_probe_n');
  DROP TABLE pg_temp.fence_probe CASCADE;

  DELETE FROM fence.protected p WHERE p.root = tab;
  -- AFTER: the row as it was written, whatever other triggers and generated
  -- columns made of it. Whoever attaches a partition needs EXECUTE, so PUBLIC
  -- keeps it.
  EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', v_fn, format($body$
DECLARE
  fence_old ALIAS FOR OLD;
  fence_new ALIAS FOR NEW;
  fence_was text COLLATE "C";
  fence_is  text COLLATE "C";
  fence_ok  boolean;
BEGIN
  IF TG_OP <> 'INSERT' THEN
    fence_was := %1$s;
    fence_ok := fence._check(fence_was, TG_RELID, %3$s);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    fence_is := %2$s;
    IF TG_OP = 'INSERT' OR fence_is IS DISTINCT FROM fence_was THEN
      fence_ok := fence._check(fence_is, TG_RELID, %3$s);
    END IF;
  END IF;
  RETURN NULL;
END $body$, v_old, v_new, (mode = 'report')::text));
  EXECUTE format('ALTER FUNCTION %s() OWNER TO %s', v_fn, v_owner);
  EXECUTE format('DROP TRIGGER IF EXISTS fence_row ON %s', tab);
  EXECUTE format('CREATE TRIGGER fence_row AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', tab, v_fn);
  FOR r IN SELECT relid::regclass AS rel FROM pg_partition_tree(tab) UNION SELECT tab LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS fence_truncate ON %s', r.rel);
    PERFORM fence._arm(r.rel);
    INSERT INTO fence.protected (rel, root, relname, resource, columns, functions, fn, mode, writers)
    VALUES (r.rel, tab, fence._name(r.rel), protect.resource, v_columns, v_functions::regprocedure[]::text[], v_fn, protect.mode, coalesce(protect.writers, fence._granted(tab)));
  END LOOP;
  PERFORM fence._grant_writers();
  PERFORM set_config('search_path', v_path, true);
END $$;

CREATE OR REPLACE FUNCTION fence._select_list(p_view regclass) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT regexp_replace(pg_get_viewdef(p_view), '^\s*SELECT\s+(.*) AS fence_resource\s+FROM .*$', '\1') $$;

-- Takes the guard off a table, named as fence.protected names it, which may be
-- gone. The marks stay.
CREATE OR REPLACE FUNCTION fence.unprotect(tab text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r record; v_root regclass; v_fn text;
BEGIN
  SELECT p.root, p.fn INTO v_root, v_fn FROM fence.protected p WHERE p.relname = tab AND p.rel = p.root;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('fence: %s is not guarded', tab);
  END IF;
  FOR r IN DELETE FROM fence.protected p WHERE p.root = v_root RETURNING p.rel, p.rel = p.root AS top LOOP
    CONTINUE WHEN NOT EXISTS (SELECT FROM pg_class WHERE oid = r.rel);
    EXECUTE format('DROP TRIGGER IF EXISTS fence_truncate ON %s', r.rel);
    IF r.top THEN EXECUTE format('DROP TRIGGER IF EXISTS fence_row ON %s', r.rel); END IF;
  END LOOP;
  -- CASCADE: a partition that was detached keeps a trigger of its own.
  EXECUTE format('DROP FUNCTION IF EXISTS %s() CASCADE', v_fn);
  PERFORM fence._grant_writers();
END $$;

-- Raises the mark of one resource, or with null all marks and the least mark of
-- names that have none. Never lowers one. Returns how many marks were raised. A
-- raised mark has no holder until the first claim of its token.
CREATE OR REPLACE FUNCTION fence.raise(resource text, token bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_n bigint;
BEGIN
  IF token IS NULL OR token < 1 OR token > 999999999999999 THEN
    PERFORM fence._raise('TF004', format('fence unacceptable token=%s resource=%s', token, resource), 'A token is an integer from 1 to 999999999999999.', resource, token, NULL, NULL);
  END IF;
  IF resource IS NULL THEN
    UPDATE fence.settings s SET least = token WHERE s.least < token;
    UPDATE fence.high_water h SET token = raise.token, holder = NULL, raised_at = clock_timestamp(), raised_by = session_user WHERE h.token < raise.token;
  ELSE
    -- Behind this lock the old token's later writers wait, as in _admit.
    PERFORM pg_advisory_xact_lock(1717921379, hashtext(resource COLLATE "C"));
    INSERT INTO fence.high_water AS h (resource, token) VALUES (resource, token)
    ON CONFLICT ON CONSTRAINT high_water_pkey DO UPDATE SET token = excluded.token, holder = NULL, raised_at = clock_timestamp(), raised_by = session_user WHERE h.token < excluded.token;
  END IF;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  RETURN v_n;
END $$;

-- After every DDL command: guards new partitions, and undoes the command, by an
-- error, if it left a guarded table unguarded.
CREATE OR REPLACE FUNCTION fence._ddl_guard() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
  FOR r IN SELECT i.inhrelid::regclass AS rel, p.root, p.resource, p.columns, p.functions, p.fn, p.mode, p.writers
             FROM pg_inherits i JOIN fence.protected p ON p.rel = i.inhparent
            WHERE fence._unfit(i.inhrelid) IS NULL AND NOT EXISTS (SELECT FROM fence.protected q WHERE q.rel = i.inhrelid) LOOP
    PERFORM fence._arm(r.rel);   -- each of its commands comes back here
    INSERT INTO fence.protected (rel, root, relname, resource, columns, functions, fn, mode, writers)
    VALUES (r.rel, r.root, fence._name(r.rel), r.resource, r.columns, r.functions, r.fn, r.mode, r.writers) ON CONFLICT DO NOTHING;
  END LOOP;
  FOR r IN SELECT * FROM fence.verify() LOOP
    PERFORM fence._raise('TF006', format('fence tampering: %s would leave %s unguarded: %s', tg_tag, r.relation, r.problem), 'To change the guard, use highwater fence install or uninstall.', NULL, NULL, NULL, r.relation);
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fence._rewrite_guard() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM fence.protected WHERE rel = pg_event_trigger_table_rewrite_oid()::regclass) THEN
    PERFORM fence._raise('TF006', format('fence tampering: %s would rewrite the rows of %s without its guard', tg_tag, pg_event_trigger_table_rewrite_oid()::regclass), 'Uninstall the guard of this table, alter it, and install the guard again.', NULL, NULL, NULL, pg_event_trigger_table_rewrite_oid()::regclass::text);
  END IF;
END $$;

-- Who owns what. With a superuser at work everything that runs on behalf of a
-- writer belongs to a role that nobody can log in as and that has no other right.
DO $$
DECLARE
  super boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
  owner name := CASE WHEN super THEN 'fence_owner' ELSE (SELECT nspowner::regrole::name FROM pg_namespace WHERE nspname = 'fence') END;
  r record;
BEGIN
  IF super THEN
    ALTER SCHEMA fence OWNER TO fence_owner;
    GRANT pg_read_all_stats TO fence_owner;   -- to see the type of its own backend
    FOR r IN SELECT c.oid::regclass AS rel FROM pg_class c WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'r' LOOP
      EXECUTE format('ALTER TABLE %s OWNER TO fence_owner', r.rel);
    END LOOP;
  END IF;
  GRANT USAGE ON SCHEMA fence TO PUBLIC;   -- so that a refusal says TF002, not "permission denied"
  FOR r IN SELECT p.oid::regprocedure AS fn, p.proname FROM pg_proc p WHERE p.pronamespace = 'fence'::regnamespace LOOP
    -- The event triggers arm partitions for their owners, and so need the
    -- superuser's rights.
    IF super AND r.proname NOT IN ('_ddl_guard', '_rewrite_guard') THEN
      EXECUTE format('ALTER FUNCTION %s OWNER TO fence_owner', r.fn);
    END IF;
    IF r.proname NOT LIKE 'guard\_%' AND r.proname NOT IN ('enter', 'enter_many') THEN
      EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', r.fn);
    END IF;
  END LOOP;
  -- A partition's owner makes its truncate trigger where there is no event trigger.
  GRANT EXECUTE ON FUNCTION fence._no_truncate() TO PUBLIC;
  IF NOT EXISTS (SELECT FROM fence.protected) THEN
    REVOKE ALL ON FUNCTION fence.enter(text, bigint, text), fence.enter_many(jsonb, text) FROM PUBLIC;
  END IF;
END $$;
