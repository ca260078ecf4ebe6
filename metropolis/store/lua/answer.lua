-- Keep an answer while its agent is at its step, and add it to the purchases, unless it is kept
-- already (resent after a lost reply). ARGV: agent, step, "buyer key", completion, purchases.

local agent, step, bought, completion = take(), take(), take(), take()
local node = call('HGET', run .. 'nodes', agent)
if not node then
  return refusal() or 0
end
if step_of(node) == step then
  local memo = run .. 'memo:' .. agent
  if call('HGET', memo, bought) == completion then
    return 0
  end
  call('HSET', memo, bought, completion)
  count('answers')
end
count_bought()
return 1
