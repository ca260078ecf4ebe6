-- Keep the minds at a step that no agent has reached. ARGV: fence, step. Returns 0 if one has.

local refused = refusal(take())
if refused then
  return refused
end
local step = take()
for agent = 0, call('HLEN', run .. 'nodes') - 1 do
  call('DEL', run .. 'kept:' .. string.format('%d', agent))
end
if tonumber(step) <= tonumber(state('newest')) then
  call('HDEL', run .. 'state', 'kept_step')
  return changed(0)
end
call('HSET', run .. 'state', 'kept_step', step)
return changed(1)
