#!lua flags=no-writes
-- The last acknowledgement, the nodes of all agents, and the released step. ARGV: 1 to return only
-- the acknowledgement.

local only = take() == '1'
local refused = (only and refusal or missing)()
if refused then
  return refused
end
if only then
  return { last_acknowledgement() }
end
return { last_acknowledgement(), call('HGETALL', run .. 'nodes'), state('released') }
