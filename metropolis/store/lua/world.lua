#!lua flags=no-writes
-- All that a step sees and perceives. ARGV: step. Returns versions and events.

local refused = refusal()
if refused then
  return refused
end
local step = take()
local names = call('HKEYS', run .. 'sinces')
table.sort(names)
return { seen(names, tonumber(step)), call('HVALS', run .. 'events:' .. step) }
