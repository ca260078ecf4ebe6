#!lua flags=allow-oom
-- Drop data that only steps below a step need; allowed if memory is full, since it frees memory.
-- ARGV: fence, step.

local refused = refusal(take())
if refused then
  return refused
end
local below, before = take_number(), tonumber(state('released'))
if below <= before then
  return unchanged(0)
end
local entries = call('ZRANGEBYSCORE', run .. 'acked', '-inf', '(' .. below)
all('XDEL', run .. 'acks', entries)
call('ZREMRANGEBYSCORE', run .. 'acked', '-inf', '(' .. below)
for step = before, below - 1 do
  local text = string.format('%d', step)
  call('DEL', run .. 'events:' .. text, run .. 'before:' .. text)
  for _, agent in ipairs(call('SMEMBERS', run .. 'memos:' .. text)) do
    call('DEL', run .. 'memo:' .. text .. ':' .. agent)
  end
  call('DEL', run .. 'memos:' .. text)
end

local names = call('ZRANGEBYSCORE', run .. 'stale', '-inf', below)
local bodies, lists, gone, later = {}, {}, {}, {}
call('ZREMRANGEBYSCORE', run .. 'stale', '-inf', below)
for i, text in ipairs(get_all(run .. 'sinces', names)) do
  local name, versions, left = names[i], words(text), {}
  local first = 1
  while versions[first + 1] and tonumber(string.match(versions[first + 1], '^%d+')) <= below do
    first = first + 1
  end
  for j = first, #versions do
    left[#left + 1] = versions[j]
  end
  if left[2] then
    later[#later + 1] = string.match(left[2], '^%d+')
    later[#later + 1] = name
  elseif string.sub(left[1], -1) == '@' then -- no cell: it is gone
    left, first = {}, #versions + 1
    gone[#gone + 1] = name
  end
  local remain = {}
  for _, version in ipairs(left) do
    remain[string.match(version, '@(.*)$')] = true
  end
  for j = 1, first - 1 do
    local since, cell = string.match(versions[j], '^(%d+)@(.*)$')
    bodies[#bodies + 1] = since .. ' ' .. name
    if cell ~= '' and not remain[cell] then
      call('SREM', run .. 'cell:' .. cell, name)
    end
  end
  if left[1] then
    lists[#lists + 1] = name
    lists[#lists + 1] = table.concat(left, ' ')
  end
end
all('HDEL', run .. 'bodies', bodies)
all('HDEL', run .. 'sinces', gone)
all('HSET', run .. 'sinces', lists, 2)
all('ZADD', run .. 'stale', later, 2)
call('HSET', run .. 'state', 'released', below)
return changed(1)
