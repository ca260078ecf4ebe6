-- A cluster's step, all of it or nothing. ARGV: id, text, "number worker", acknowledgement, nodes,
-- versions, events. Returns 1 when it is committed by this claim, else 0.

local refused = refusal()
if refused then
  return refused
end
local id, text, claim, acknowledgement = take(), take(), take(), take()
local members = words(text)
local step = table.remove(members, 1)
local due, mine = true, true
for _, at in ipairs(get_all(run .. 'steps', members)) do
  due = due and at == step
end
for _, home in ipairs(get_all(run .. 'homes', members)) do
  mine = mine and home == claim
end
if mine then
  return 1
end
local holder = redis.call('HGET', run .. 'claims', id)
local held = holder == claim or (not holder and redis.call('ZSCORE', run .. 'ready', id))
if not (due and held and redis.call('HGET', run .. 'clusters', id) == text) then
  count('refused')
  return 0
end

withdraw(id)
local following = string.format('%d', step + 1)
write_nodes(following)
for _, agent in ipairs(members) do
  redis.call('HSET', run .. 'homes', agent, claim)
end
write_versions(following)
write_events(following)
local entry = redis.call('XADD', run .. 'acks', '*', 'outcome', acknowledgement)
redis.call('ZADD', run .. 'acked', step, entry)
if tonumber(state('newest')) < tonumber(following) then
  redis.call('HSET', run .. 'state', 'newest', following)
end
count('commits')
count('agent_steps', #members)
return 1
