-- Keep an answer while its agent is at its step. ARGV: agent, step, key, completion.

local refused = refusal()
if refused then
  return refused
end
local agent, step, key, completion = take(), take(), take(), take()
if redis.call('HGET', run .. 'steps', agent) ~= step then
  return 0
end
redis.call('HSET', run .. 'memo:' .. agent, key, completion)
count('answers')
return 1
