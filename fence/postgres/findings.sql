-- What Verify finds: effect, subject, text. It reads only.
WITH guard AS (
  SELECT n.nspowner AS owner, r.rolname, r.rolsuper, r.rolcanlogin FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'fence'
), events AS (
  SELECT e.name, t.evtenabled FROM (VALUES
    ('fence_ddl', 'fence._ddl_guard()'), ('fence_drop', 'fence._ddl_guard()'), ('fence_rewrite', 'fence._rewrite_guard()')) e (name, fn)
  LEFT JOIN pg_event_trigger t ON t.evtname = e.name AND t.evtfoid = to_regprocedure(e.fn)
), defended AS (
  SELECT NOT EXISTS (SELECT FROM events WHERE evtenabled IS DISTINCT FROM 'A') AND current_setting('event_triggers', true) IS DISTINCT FROM 'off' AS yes
), rels AS (
  SELECT p.rel, p.root, p.relname, p.mode, p.writers, p.functions, c.relowner, c.relnamespace FROM fence.protected p JOIN pg_class c ON c.oid = p.rel
), people AS (
  SELECT oid, rolname, rolcanlogin, rolcreaterole FROM pg_roles WHERE NOT rolsuper
)
SELECT effect, subject, text FROM (
  SELECT 1 AS n, 'broken' AS effect, relation AS subject, problem AS text FROM fence.verify()
  UNION ALL
  SELECT 1, 'broken', relname, 'the mode is report: late writes are counted and let through' FROM rels WHERE rel = root AND mode = 'report'
  UNION ALL
  SELECT 1, 'broken', 'fence.high_water', format('the trigger %s is missing or not ENABLE ALWAYS: a mark can be lowered', w.name)
    FROM (VALUES ('fence_never_lower'), ('fence_never_empty')) w (name)
   WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'fence.high_water'::regclass AND t.tgname = w.name AND t.tgenabled = 'A')
  UNION ALL
  SELECT 2, 'note', 'guard', format('the event trigger %s is %s; only a superuser can install it', name, CASE WHEN evtenabled IS NULL THEN 'missing' ELSE 'not ENABLE ALWAYS' END)
    FROM events WHERE evtenabled IS DISTINCT FROM 'A'
  UNION ALL
  SELECT 2, 'note', 'guard', 'the setting event_triggers is off' WHERE current_setting('event_triggers', true) = 'off'
  UNION ALL
  SELECT DISTINCT 2, 'weakens', x.relname, format('%s %I can switch the guard off, for there are no event triggers to stop it', x.what, r.rolname)
    FROM (SELECT relname, relowner AS role, 'its owner' AS what FROM rels
          UNION ALL SELECT relname, s.nspowner, 'the owner of its schema' FROM rels JOIN pg_namespace s ON s.oid = rels.relnamespace) x
    JOIN people r ON r.oid = x.role
   WHERE NOT (SELECT yes FROM defended) AND (r.rolcanlogin OR EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = r.oid) OR r.rolname = 'pg_database_owner')
  UNION ALL
  SELECT 2, 'weakens', r.rolname, format('can act as %I, who owns the marks', g.rolname)
    FROM guard g JOIN people r ON pg_has_role(r.oid, g.owner, 'MEMBER') AND (r.oid <> g.owner OR g.rolcanlogin) AND r.rolcanlogin
   WHERE NOT g.rolsuper
  UNION ALL
  SELECT 2, 'weakens', r.rolname, format('has CREATEROLE, which before PostgreSQL 16 lets it make itself a member of %I', g.rolname)
    FROM guard g JOIN people r ON r.rolcreaterole AND r.rolcanlogin AND r.oid <> g.owner
   WHERE NOT g.rolsuper AND current_setting('server_version_num')::int < 160000
  UNION ALL
  SELECT 2, 'note', g.rolname, 'owns the guard and is a superuser, so the guard''s functions run as one; install as a superuser to give them an owner of their own'
    FROM guard g WHERE g.rolsuper
  UNION ALL
  SELECT 2, 'weakens', r.rolname, format('may write %s', c.oid::regclass)
    FROM pg_class c, people r, guard g
   WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'r' AND r.rolcanlogin AND NOT pg_has_role(r.oid, g.owner, 'MEMBER')
     AND has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
  UNION ALL
  SELECT 2, 'weakens', r.rolname, format('is a member of %s and can reach the server''s files', f.name)
    FROM (VALUES ('pg_write_server_files'), ('pg_execute_server_program')) f (name), people r
   WHERE r.rolcanlogin AND pg_has_role(r.oid, f.name, 'MEMBER')
  UNION ALL
  SELECT DISTINCT 2, 'weakens', rels.relname, format('%I owns the function %s, which takes part in naming the resources', r.rolname, f.name)
    FROM rels, unnest(rels.functions) f (name) JOIN pg_proc p ON p.oid = to_regprocedure(f.name) JOIN people r ON r.oid = p.proowner
   WHERE rels.rel = rels.root
  UNION ALL
  SELECT 3, 'note', x.relname, format('%s may write it, but is no writer: every write of that role is rejected', x.role)
    FROM (SELECT rels.relname, rels.writers, unnest(fence._granted(rels.rel)) AS role FROM rels WHERE rel = root) x
   WHERE x.role <> ALL (x.writers) AND 'public' <> ALL (x.writers)
     AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = x.role AND has_function_privilege(r.oid, 'fence.enter(text,bigint,text)', 'EXECUTE'))
  UNION ALL
  SELECT 3, 'note', 'superusers', 'no guard stops those who can switch it off: ' || string_agg(quote_ident(rolname), ', ' ORDER BY rolname) FROM pg_roles WHERE rolsuper AND rolcanlogin
  UNION ALL
  SELECT 3, 'note', s.subname, 'rows that this subscription applies are not checked here, but where they were written'
    FROM pg_subscription s WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  UNION ALL
  SELECT 3, 'note', 'database', format('the encoding is %s, in which not every lease name can be written', getdatabaseencoding()) WHERE getdatabaseencoding() <> 'UTF8'
) f WHERE text IS NOT NULL ORDER BY n, effect, subject, text
