-- Keep an answer while its agent is at its step, and add it to what was bought. ARGV: agent, step,
-- key, completion; three times a sum and what it grows by.

local refused = refusal()
if refused then
  return refused
end
local agent, step, key, completion = take(), take(), take(), take()
for _ = 1, 3 do
  redis.call('HINCRBY', run .. 'bought', take(), take())
end
if redis.call('HGET', run .. 'steps', agent) ~= step then
  return 0
end
redis.call('HSET', run .. 'memo:' .. agent, key, completion)
count('answers')
return 1
