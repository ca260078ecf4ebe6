-- Before every script. KEYS[1] is the prefix of the run's keys, whose schema stands in redis.py;
-- the arguments are taken one after the other. A script checks everything before it writes.

local run = KEYS[1]
local taken = 0

local function take()
  taken = taken + 1
  return ARGV[taken]
end

local function take_number()
  return tonumber(take())
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function state(field)
  return redis.call('HGET', run .. 'state', field)
end

local function count(what, by)
  redis.call('HINCRBY', run .. 'counts', what, by or 1)
end

-- Why the script must not go on: no run, or another controller's; `fence` is optional.
local function refusal(fence)
  local current = state('fence')
  if not current then
    return redis.error_reply('NORUN')
  end
  if fence and fence ~= current then
    return redis.error_reply('FENCED ' .. (state('holder') or ''))
  end
end

local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    found[#found + 1] = word
  end
  return found
end

-- HMGET of any number of fields: `unpack` has a limit.
local function get_all(hash, fields)
  local found = {}
  for first = 1, #fields, 4000 do
    local last = math.min(first + 3999, #fields)
    local part = redis.call('HMGET', hash, unpack(fields, first, last))
    for i = 1, #part do
      found[first + i - 1] = part[i]
    end
  end
  return found
end

-- End the claim of a cluster, if it is claimed.
local function end_claim(id)
  local claim = redis.call('HGET', run .. 'claims', id)
  if claim then
    redis.call('HDEL', run .. 'claims', id)
    redis.call('HDEL', run .. 'numbers', string.match(claim, '^%d+'))
    redis.call('ZREM', run .. 'leases', id)
  end
end

-- Take a cluster out of the queues.
local function withdraw(id)
  local text = redis.call('HGET', run .. 'clusters', id)
  if text then
    local members = words(text)
    for i = 2, #members do
      redis.call('HDEL', run .. 'busy', members[i])
    end
  end
  redis.call('HDEL', run .. 'clusters', id)
  end_claim(id)
  redis.call('ZREM', run .. 'ready', id)
end

-- Agents and what they are about to read and to be: number, then agent, place, around, mind.
local function write_nodes(step)
  local kept = state('kept_step') == step
  for _ = 1, take_number() do
    local agent = take()
    redis.call('HSET', run .. 'steps', agent, step)
    redis.call('HSET', run .. 'places', agent, take())
    redis.call('HSET', run .. 'around', agent, take())
    local mind = take()
    redis.call('HSET', run .. 'minds', agent, mind)
    if kept then
      redis.call('HSET', run .. 'kept', agent, mind)
    end
    redis.call('DEL', run .. 'memo:' .. agent)
  end
end

-- Versions seen from step `since` on: number, then name, cell, body ('' when it is gone).
local function write_versions(since)
  for _ = 1, take_number() do
    local name, cell, body = take(), take(), take()
    local before = redis.call('HGET', run .. 'sinces', name)
    redis.call('HSET', run .. 'sinces', name, before and (before .. ' ' .. since) or since)
    redis.call('HSET', run .. 'bodies', since .. ' ' .. name, cell .. '\n' .. body)
    if before or body == '' then
      redis.call('ZADD', run .. 'stale', 'NX', since, name)
    end
    if body ~= '' then
      redis.call('HINCRBY', run .. 'cell:' .. cell, name, 1)
    end
  end
end

-- Events that `step` perceives: number, then cell, line.
local function write_events(step)
  local events = run .. 'events:' .. step
  for _ = 1, take_number() do
    local cell, line = take(), take()
    local before = redis.call('HGET', events, cell)
    redis.call('HSET', events, cell, before and (before .. '\n' .. line) or line)
  end
end

-- What `step` sees of `names`, as a flat list of since, name, "cell\nbody".
local function seen(names, step)
  local sinces = get_all(run .. 'sinces', names)
  local fields, found = {}, {}
  for i = 1, #names do
    local newest
    for since in string.gmatch(sinces[i] or '', '%d+') do
      if tonumber(since) <= step then
        newest = since
      end
    end
    if newest then
      fields[#fields + 1] = newest .. ' ' .. names[i]
      found[#found + 1] = newest
      found[#found + 1] = names[i]
      found[#found + 1] = false
    end
  end
  local bodies = get_all(run .. 'bodies', fields)
  for i = 1, #fields do
    found[3 * i] = bodies[i]
  end
  return found
end
