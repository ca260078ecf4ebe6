#!lua flags=no-writes
-- Everything that a step sees and perceives. ARGV: step. Returns versions and events.

local refused = missing()
if refused then
  return refused
end
local step = take_number()
local names = call('HKEYS', run .. 'sinces')
table.sort(names)
local events = run .. 'events:' .. string.format('%d', step)
return { seen(names, step, step), call('HVALS', events) }
