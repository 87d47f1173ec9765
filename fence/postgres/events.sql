-- The defence of the guard against the owners of the tables. It comes last, when
-- all guards stand. Only a superuser, or what a managed service has in its
-- place, may have event triggers; without them the report says what is left.
DO $$
BEGIN
  CREATE EVENT TRIGGER fence_ddl ON ddl_command_end EXECUTE FUNCTION fence._ddl_guard();
  CREATE EVENT TRIGGER fence_drop ON sql_drop EXECUTE FUNCTION fence._ddl_guard();
  CREATE EVENT TRIGGER fence_rewrite ON table_rewrite EXECUTE FUNCTION fence._rewrite_guard();
  ALTER EVENT TRIGGER fence_ddl ENABLE ALWAYS;
  ALTER EVENT TRIGGER fence_drop ENABLE ALWAYS;
  ALTER EVENT TRIGGER fence_rewrite ENABLE ALWAYS;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE NOTICE 'fence: no event triggers: %', SQLERRM;
END $$;
