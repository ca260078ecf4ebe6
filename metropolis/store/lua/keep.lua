-- Keep the minds of a step nobody has come to. ARGV: fence, step. Returns 0 when somebody has.

local refused = refusal(take())
if refused then
  return refused
end
local step = take()
redis.call('DEL', run .. 'kept')
if tonumber(step) <= tonumber(state('newest')) then
  redis.call('HDEL', run .. 'state', 'kept_step')
  return 0
end
redis.call('HSET', run .. 'state', 'kept_step', step)
return 1
