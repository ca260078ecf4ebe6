-- Queue clusters, and claim those whose last worker is waiting for it. ARGV: fence, floor;
-- number, then id, text; number, then agent, "until cell cell ..." of its lookahead; number, then
-- agent, blocker ('': none).

local refused = refusal(take())
if refused then
  return refused
end
local floor = take()
local ids, texts, members_of, all_members = {}, {}, {}, {}
for i = 1, take_number() do
  ids[i], texts[i] = take(), take()
  members_of[i] = words(texts[i])
  for j = 2, #members_of[i] do
    all_members[#all_members + 1] = members_of[i][j]
  end
end
local ahead = {}
for _ = 1, take_number() do
  local agent, text = take(), take()
  if lookahead_of(agent) < tonumber(step_of(text)) then
    ahead[#ahead + 1], ahead[#ahead + 2] = agent, text
  end
end
local steps, busy, known = {}, {}, {}
for i, node in ipairs(get_all(run .. 'nodes', all_members)) do
  steps[all_members[i]] = step_of(node)
end
for i, id in ipairs(get_all(run .. 'busy', all_members)) do
  busy[all_members[i]] = id
end
for i, text in ipairs(get_all(run .. 'clusters', ids)) do
  known[ids[i]] = text
end

local fresh = {}
for i, text in ipairs(texts) do
  local members = members_of[i]
  local step, due, past = table.remove(members, 1), 0, 0
  for _, agent in ipairs(members) do
    if steps[agent] == step then
      due = due + 1
    elseif tonumber(steps[agent]) > tonumber(step) then
      past = past + 1
    end
  end
  if past < #members and known[ids[i]] ~= text then
    if due < #members then
      return redis.error_reply('APART ' .. text)
    end
    fresh[#fresh + 1] = i
  end
end

all('HSET', run .. 'ahead', ahead, 2)

local function leave(id)
  local members = words(known[id] or call('HGET', run .. 'clusters', id))
  table.remove(members, 1)
  withdraw(id, members)
  for _, agent in ipairs(members) do
    busy[agent] = nil
  end
  known[id] = nil
end

local clusters, dispatched, ready, firsts = {}, {}, {}, {}
for _, i in ipairs(fresh) do
  local id, members = ids[i], members_of[i]
  if known[id] then
    leave(id)
  end
  for _, agent in ipairs(members) do
    if busy[agent] then
      leave(busy[agent])
    end
    dispatched[#dispatched + 1] = agent
    dispatched[#dispatched + 1] = id
  end
  clusters[#clusters + 1] = id
  clusters[#clusters + 1] = texts[i]
  ready[#ready + 1] = step_of(id)
  ready[#ready + 1] = id
  firsts[#firsts + 1] = members[1]
end
if fresh[1] then
  all('HSET', run .. 'busy', dispatched, 2)
  all('HSET', run .. 'clusters', clusters, 2)
  all('ZADD', run .. 'ready', ready, 2)
  count('dispatched', #fresh)
  local homeless, of_worker, workers = {}, {}, {}
  for i, home in ipairs(get_all(run .. 'homes', firsts)) do
    local worker = worker_of(home)
    if not worker then
      homeless[#homeless + 1] = 1
    elseif of_worker[worker] then
      table.insert(of_worker[worker], clusters[2 * i - 1])
    else
      of_worker[worker] = { clusters[2 * i - 1] }
      workers[#workers + 1] = worker
    end
  end
  all('RPUSH', run .. 'tokens', homeless)
  local now = now_ms()
  for i, waiting in ipairs(get_all(run .. 'asking', workers)) do
    local until_ms, number, lease, most = unpack(words(waiting or '0'))
    if tonumber(until_ms) > now then
      local worker, ids = workers[i], {}
      for j = 1, math.min(most, #of_worker[workers[i]]) do
        ids[j] = of_worker[worker][j]
      end
      claim_all(number, worker, lease, ids, now)
      local inbox = run .. 'inbox:' .. worker
      all('RPUSH', inbox, described(number, worker, ids))
      call('PEXPIRE', inbox, lease)
      call('HDEL', run .. 'asking', worker)
    end
  end
end
local blocked, free = {}, {}
for _ = 1, take_number() do
  local agent, blocker = take(), take()
  if blocker == '' then
    free[#free + 1] = agent
  else
    blocked[#blocked + 1] = agent
    blocked[#blocked + 1] = blocker
  end
end
all('HDEL', run .. 'blocked', free)
all('HSET', run .. 'blocked', blocked, 2)
call('HSET', run .. 'state', 'floor', floor)
local changes = fresh[1] or ahead[1] or free[1] or blocked[1]
return (changes and changed or unchanged)(#fresh)
