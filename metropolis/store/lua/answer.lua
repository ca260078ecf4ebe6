-- Keep an answer until its step is collected, and add it to the purchases, unless it is kept
-- already (resent after a lost reply). ARGV: agent, step, "buyer key", completion, purchases.

local refused = refusal()
if refused then
  return refused
end
local agent, step, bought, completion = take(), take(), take(), take()
local collected = state('released')
if call('HEXISTS', run .. 'nodes', agent) == 0 then
  return 0
end
if tonumber(step) >= tonumber(collected) then
  if not keep_answer(agent, step, bought, completion) then
    return 0
  end
  count('answers')
end
count_bought()
return 1
