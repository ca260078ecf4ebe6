#!lua flags=allow-oom
-- Go on after a restart of the server, if it has lost nothing that the controller knows. ARGV:
-- fence, number of its changes, the last acknowledgement it has read.

local refused = missing(take())
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
if lacks or tonumber(state('changes')) < changes then
  return lost()
end
if state('server') ~= server_id() then
  accept_server()
end
return 1
