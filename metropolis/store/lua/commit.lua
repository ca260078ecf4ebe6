-- Commit a cluster's step, all or nothing. ARGV: id, text, "number worker", lease in ms of the next
-- step if the worker continues (-1: it does not), the lookahead it knows, acknowledgement, nodes,
-- versions, events, purchases, answers to keep. Returns 1 if this claim has committed it, else 0;
-- the result of `described` for the next step if the worker continues and its lookahead has grown.

local wanted = { 'fence', 'server', 'newest', 'kept_step', 'retractable', 'restarts' }
local about = call('HMGET', run .. 'state', unpack(wanted))
local refused = refusal(nil, about)
if refused then
  return refused
end
local id, text, claim = take(), take(), take()
local lease, known_until, acknowledgement = take_number(), take_number(), take()
local members = words(text)
local step = table.remove(members, 1)
local mine, due, stale = true, true, false
for _, home in ipairs(get_all(run .. 'homes', members)) do
  mine = mine and (home == claim or home == claim .. LATE)
  stale = stale or home == claim .. LATE -- it continues a late commit
end
for _, node in ipairs(get_all(run .. 'nodes', members)) do
  mine = mine and tonumber(step_of(node)) > tonumber(step) -- a continuing worker keeps its number
  due = due and step_of(node) == step
end
if mine then
  return 1
end
local retractable = about[5] == '1'
local holder = call('HGET', run .. 'claims', id)
local keeps_claims = not (retractable or about[6])
local late = not holder and keeps_claims and call('ZSCORE', run .. 'ready', id)
local held = holder == claim or late
if not (due and held and call('HGET', run .. 'clusters', id) == text) then
  count('refused')
  return 0
end

withdraw(id, members)
local following = string.format('%d', step + 1)
local before = retractable and {}
write_nodes(following, about[4] == following, before)
local names = write_versions(following)
write_events(following)
local until_step = members[2] and 0 or lookahead_of(members[1])
local continues = until_step > tonumber(following)
if continues or lease < 0 then -- otherwise its copy of the mind is a step ahead
  local homes = {}
  local home = (late or stale) and claim .. LATE or claim
  for i, agent in ipairs(members) do
    homes[2 * i - 1], homes[2 * i] = agent, home
  end
  all('HSET', run .. 'homes', homes, 2)
end
local entry =
  call('XADD', run .. 'acks', '*', 'execution', acknowledgement, 'continues', continues and 1 or 0)
call('ZADD', run .. 'acked', step, entry)
if retractable then
  local replaced = {}
  for agent, what in pairs(before) do
    what.entry, what.members, what.written = entry, members, names
    replaced[#replaced + 1], replaced[#replaced + 2] = agent, cmsgpack.pack(what)
  end
  all('HSET', run .. 'before:' .. step, replaced, 2)
end
if tonumber(about[3]) < tonumber(following) then
  call('HSET', run .. 'state', 'newest', following)
end
count_bought()
for _ = 1, take_number() do
  keep_answer(take(), step, take(), take())
end
count('commits')
count('agent_steps', #members)
if not continues then
  return 1
end
local agent = members[1]
local next, about_next = following .. ':' .. agent, following .. ' ' .. agent
call('HSET', run .. 'busy', agent, next)
call('HSET', run .. 'clusters', next, about_next)
count('dispatched')
count('ahead')
if lease < 0 then
  make_ready(next)
  return 1
end
call('HSET', run .. 'claims', next, claim)
call('ZADD', run .. 'leases', now_ms() + lease, next)
count('claims')
if until_step <= known_until then
  return 1
end
local number, worker = string.match(claim, '^(%d+) (.*)$')
local found = { number, 1 }
describe(found, worker, next, about_next)
return found
