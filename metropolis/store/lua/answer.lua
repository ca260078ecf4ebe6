-- Keep an answer while its agent is at its step, and add it to what was bought. ARGV: agent, step,
-- key, completion, what was bought.

local agent, step, key, completion = take(), take(), take(), take()
local node = call('HGET', run .. 'nodes', agent)
if not node then
  return refusal() or 0
end
count_bought()
if step_of(node) ~= step then
  return 0
end
call('HSET', run .. 'memo:' .. agent, key, completion)
count('answers')
return 1
