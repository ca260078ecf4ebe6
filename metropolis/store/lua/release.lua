#!lua flags=allow-oom
-- Drop what only steps below a step need: it frees memory, so it may run when there is none.
-- ARGV: fence, step.

local refused = refusal(take())
if refused then
  return refused
end
local below, before = take_number(), tonumber(state('released'))
if below <= before then
  return 0
end
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', run .. 'acked', '-inf', '(' .. below)) do
  redis.call('XDEL', run .. 'acks', entry)
  redis.call('ZREM', run .. 'acked', entry)
end
for step = before, below - 1 do
  redis.call('DEL', run .. 'events:' .. string.format('%d', step))
end

local function forget(since, name)
  local field = since .. ' ' .. name
  local cell, body = string.match(redis.call('HGET', run .. 'bodies', field), '^([^\n]*)\n(.*)$')
  redis.call('HDEL', run .. 'bodies', field)
  if body ~= '' and redis.call('HINCRBY', run .. 'cell:' .. cell, name, -1) == 0 then
    redis.call('HDEL', run .. 'cell:' .. cell, name)
  end
  return body
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', run .. 'stale', '-inf', below)) do
  local sinces = words(redis.call('HGET', run .. 'sinces', name))
  while sinces[2] and tonumber(sinces[2]) <= below do
    forget(table.remove(sinces, 1), name)
  end
  if sinces[2] then
    redis.call('ZADD', run .. 'stale', sinces[2], name)
  else
    redis.call('ZREM', run .. 'stale', name)
    local body = redis.call('HGET', run .. 'bodies', sinces[1] .. ' ' .. name)
    if string.sub(body, -1) == '\n' then
      forget(sinces[1], name)
      redis.call('HDEL', run .. 'sinces', name)
      sinces = {}
    end
  end
  if sinces[1] then
    redis.call('HSET', run .. 'sinces', name, table.concat(sinces, ' '))
  end
end
redis.call('HSET', run .. 'state', 'released', below)
return 1
