-- A cluster's step, all of it or nothing. ARGV: id, text, "number worker", acknowledgement, nodes,
-- versions, events, what was bought. Returns 1 when it is committed by this claim, else 0.

local about = call('HMGET', run .. 'state', 'fence', 'newest', 'kept_step')
local refused = refusal(nil, about[1])
if refused then
  return refused
end
local id, text, claim, acknowledgement = take(), take(), take(), take()
local members = words(text)
local step = table.remove(members, 1)
local mine = true
for _, home in ipairs(get_all(run .. 'homes', members)) do
  mine = mine and home == claim
end
if mine then
  return 1
end
local due = true
for _, node in ipairs(get_all(run .. 'nodes', members)) do
  due = due and step_of(node) == step
end
local holder = call('HGET', run .. 'claims', id)
local held = holder == claim or (not holder and call('ZSCORE', run .. 'ready', id))
if not (due and held and call('HGET', run .. 'clusters', id) == text) then
  count('refused')
  return 0
end

withdraw(id, members)
local following = string.format('%d', step + 1)
write_nodes(following, about[3] == following)
local homes = {}
for i, agent in ipairs(members) do
  homes[2 * i - 1], homes[2 * i] = agent, claim
end
all('HSET', run .. 'homes', homes, 2)
write_versions(following)
write_events(following)
local entry = call('XADD', run .. 'acks', '*', 'outcome', acknowledgement)
call('ZADD', run .. 'acked', step, entry)
if tonumber(about[2]) < tonumber(following) then
  call('HSET', run .. 'state', 'newest', following)
end
count_bought()
count('commits')
count('agent_steps', #members)
return 1
