-- Let clusters be claimed. ARGV: fence, floor; number, then id, text; number, then agent, blocker
-- ('' when there is none).

local refused = refusal(take())
if refused then
  return refused
end
local floor = take()
local fresh = {}
for _ = 1, take_number() do
  local id, text = take(), take()
  local members = words(text)
  local step = table.remove(members, 1)
  local due, past = 0, 0
  for _, at in ipairs(get_all(run .. 'steps', members)) do
    if at == step then
      due = due + 1
    elseif tonumber(at) > tonumber(step) then
      past = past + 1
    end
  end
  local known = redis.call('HGET', run .. 'clusters', id)
  if past < #members and known ~= text then
    if due < #members then
      return redis.error_reply('APART ' .. text)
    end
    fresh[#fresh + 1] = { id = id, text = text, step = step, members = members }
  end
end
for _, cluster in ipairs(fresh) do
  if redis.call('HEXISTS', run .. 'clusters', cluster.id) == 1 then
    withdraw(cluster.id)
  end
  for _, agent in ipairs(cluster.members) do
    local before = redis.call('HGET', run .. 'busy', agent)
    if before then
      withdraw(before)
    end
    redis.call('HSET', run .. 'busy', agent, cluster.id)
  end
  redis.call('HSET', run .. 'clusters', cluster.id, cluster.text)
  redis.call('ZADD', run .. 'ready', cluster.step, cluster.id)
  redis.call('RPUSH', run .. 'tokens', 1)
end
if #fresh > 0 then
  count('dispatched', #fresh)
end
for _ = 1, take_number() do
  local agent, blocker = take(), take()
  if blocker == '' then
    redis.call('HDEL', run .. 'blocked', agent)
  else
    redis.call('HSET', run .. 'blocked', agent, blocker)
  end
end
redis.call('HSET', run .. 'state', 'floor', floor)
return #fresh
