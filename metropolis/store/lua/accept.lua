#!lua flags=allow-oom
-- Go on after a restart of the server, if it has lost nothing that the controller knows. ARGV:
-- fence, number of its changes, the last acknowledgement it has read.

local fence, current = take(), state('fence')
local is_lost = current and tonumber(fence) > tonumber(current)
local refused = not is_lost and missing(fence, current)
if refused then
  return refused
end
local function order(entry)
  local first, second = string.match(entry, '^(%d+)-?(%d*)$')
  return tonumber(first), tonumber(second) or 0
end
local changes, known = take_number(), take()
local last_first, last_second = order(last_acknowledgement())
local first, second = order(known)
local lacks = last_first < first or last_first == first and last_second < second
if is_lost or lacks or tonumber(state('changes')) < changes then
  call('HSET', run .. 'state', 'lossy', server_id())
  return redis.error_reply('LOST')
end
if state('server') ~= server_id() then
  accept_server()
end
return 1
