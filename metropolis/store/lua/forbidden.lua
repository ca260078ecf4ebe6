#!lua flags=no-writes
-- The first command that the user may not use, if any. ARGV: commands.

for _, command in ipairs(ARGV) do
  if not redis.acl_check_cmd(command, run) then
    return command
  end
end
