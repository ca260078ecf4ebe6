-- The ready cluster of the lowest step and all it needs. ARGV: number, worker, lease in ms, affinity
-- in steps, 1 if the worker has taken a token already. Returns id, text, versions, events, minds,
-- answers; when nothing is ready, the ms until the next claim runs out (-1: none will). A number
-- that is known gets the cluster it has got before: its reply was lost.

local refused = refusal()
if refused then
  return refused
end
local number, worker, lease, affinity = take(), take(), take_number(), take_number()
local has_token = take() == '1'
local now = now_ms()

for _, id in ipairs(redis.call('ZRANGEBYSCORE', run .. 'leases', '-inf', now)) do
  end_claim(id)
  redis.call('ZADD', run .. 'ready', string.match(id, '^%d+'), id)
  redis.call('RPUSH', run .. 'tokens', 1)
  count('expired')
end

-- The id holds the step and the first member, whose last worker is the cluster's home. Of equals
-- the first counts, which is of the lowest step.
local function choose()
  local candidates = redis.call('ZRANGE', run .. 'ready', 0, 31)
  local firsts = {}
  for i, id in ipairs(candidates) do
    firsts[i] = string.match(id, ':(%d+)$')
  end
  local homes = get_all(run .. 'homes', firsts)
  local chosen, least
  for i, id in ipairs(candidates) do
    local foreign = not homes[i] or string.match(homes[i], '^%d+ (.*)$') ~= worker
    local cost = tonumber(string.match(id, '^%d+')) + (foreign and affinity + 0.5 or 0)
    if not least or cost < least then
      chosen, least = id, cost
    end
  end
  return chosen
end

local chosen = redis.call('HGET', run .. 'numbers', number)
if not chosen then
  chosen = choose()
  if not chosen then
    redis.call('DEL', run .. 'tokens')
    local next = redis.call('ZRANGE', run .. 'leases', 0, 0, 'WITHSCORES')
    return next[2] and math.max(1, next[2] - now) or -1
  end
  redis.call('ZREM', run .. 'ready', chosen)
  if not has_token then
    redis.call('LPOP', run .. 'tokens')
  end
  redis.call('HSET', run .. 'claims', chosen, number .. ' ' .. worker)
  redis.call('HSET', run .. 'numbers', number, chosen)
  redis.call('ZADD', run .. 'leases', now + lease, chosen)
  count('claims')
end

local text = redis.call('HGET', run .. 'clusters', chosen)
local members = words(text)
local step = table.remove(members, 1)
local cells, is_known = {}, {}
for _, around in ipairs(get_all(run .. 'around', members)) do
  for cell in string.gmatch(around, '%S+') do
    if not is_known[cell] then
      is_known[cell] = true
      cells[#cells + 1] = cell
    end
  end
end
local names = {}
is_known = {}
for _, cell in ipairs(cells) do
  for _, name in ipairs(redis.call('HKEYS', run .. 'cell:' .. cell)) do
    if not is_known[name] then
      is_known[name] = true
      names[#names + 1] = name
    end
  end
end
local events = {}
if redis.call('EXISTS', run .. 'events:' .. step) == 1 then
  for _, lines in ipairs(get_all(run .. 'events:' .. step, cells)) do
    if lines then
      events[#events + 1] = lines
    end
  end
end

local minds, answers = {}, {}
local homes_of = get_all(run .. 'homes', members)
for i, agent in ipairs(members) do
  if not homes_of[i] or string.match(homes_of[i], '^%d+ (.*)$') ~= worker then
    minds[#minds + 1] = agent
    minds[#minds + 1] = redis.call('HGET', run .. 'minds', agent)
  end
  redis.call('HDEL', run .. 'homes', agent)
  for _, part in ipairs(redis.call('HGETALL', run .. 'memo:' .. agent)) do
    answers[#answers + 1] = part
  end
end
return { chosen, text, seen(names, tonumber(step)), events, minds, answers }
