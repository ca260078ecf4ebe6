-- The ready clusters of the lowest steps and all they need. ARGV: number, worker, lease in ms,
-- affinity in steps, how many at most, 1 if none that another worker ran last. Returns of each id,
-- text, versions, events, minds, answers; when nothing is ready, the ms until the next claim runs
-- out (-1: none will). The number that the worker has used last gets the clusters it has got before:
-- its reply was lost.

local refused = refusal()
if refused then
  return refused
end
local number, worker, lease, affinity = take(), take(), take_number(), take_number()
local most, own = take_number(), take() == '1'
local claim = number .. ' ' .. worker
local now = now_ms()
call('DEL', run .. 'tokens:' .. worker)

local expired = call('ZRANGEBYSCORE', run .. 'leases', '-inf', now)
for _, id in ipairs(expired) do
  call('HDEL', run .. 'claims', id)
  call('ZREM', run .. 'leases', id)
  make_ready(id)
end
if expired[1] then
  count('expired', #expired)
end

-- The id holds the step and the first member, whose last worker is the cluster's home. Of equals
-- the first count, which are of the lowest steps.
local function choose()
  local candidates = call('ZRANGE', run .. 'ready', 0, own and -1 or math.max(32, most) - 1)
  local firsts, costs, order = {}, {}, {}
  for i, id in ipairs(candidates) do
    firsts[i] = string.match(id, ':(%d+)$')
  end
  for i, home in ipairs(get_all(run .. 'homes', firsts)) do
    local foreign = worker_of(home) ~= worker
    if not (own and home and foreign) then
      costs[i] = tonumber(step_of(candidates[i])) + (foreign and affinity + 0.5 or 0)
      order[#order + 1] = i
    end
  end
  table.sort(order, function(one, other)
    if costs[one] == costs[other] then
      return one < other
    end
    return costs[one] < costs[other]
  end)
  local chosen = {}
  for i = 1, math.min(most, #order) do
    chosen[i] = candidates[order[i]]
  end
  return chosen
end

local chosen = {}
local last = words(call('HGET', run .. 'lasts', worker) or '')
if last[1] == number then
  table.remove(last, 1)
  for i, holder in ipairs(get_all(run .. 'claims', last)) do
    if holder == claim then
      chosen[#chosen + 1] = last[i]
    end
  end
end
if not chosen[1] then
  chosen = choose()
  if not chosen[1] then
    call('DEL', run .. 'tokens')
    local next = call('ZRANGE', run .. 'leases', 0, 0, 'WITHSCORES')
    return next[2] and math.max(1, next[2] - now) or -1
  end
  call('ZREM', run .. 'ready', unpack(chosen))
  local claims, leases = {}, {}
  for i, id in ipairs(chosen) do
    claims[2 * i - 1], claims[2 * i] = id, claim
    leases[2 * i - 1], leases[2 * i] = now + lease, id
  end
  call('HSET', run .. 'claims', unpack(claims))
  call('HSET', run .. 'lasts', worker, number .. ' ' .. table.concat(chosen, ' '))
  call('ZADD', run .. 'leases', unpack(leases))
  count('claims', #chosen)
end

local function about(id, text)
  local members = words(text)
  local step = table.remove(members, 1)
  local names, events = {}, {}
  local cells, keys, is_known = {}, {}, {}
  for _, node in ipairs(get_all(run .. 'nodes', members)) do
    for cell in string.gmatch(string.match(node, '\n([^\n]*)$'), '%S+') do
      if not is_known[cell] then
        is_known[cell] = true
        cells[#cells + 1] = cell
        keys[#keys + 1] = run .. 'cell:' .. cell
      end
    end
  end
  if #keys <= 4000 then
    names = call('SUNION', unpack(keys))
  else
    for _, key in ipairs(keys) do
      for _, name in ipairs(call('SMEMBERS', key)) do
        if not is_known[key .. name] then
          is_known[key .. name] = true
          names[#names + 1] = name
        end
      end
    end
  end
  for _, lines in ipairs(get_all(run .. 'events:' .. step, cells)) do
    if lines then
      events[#events + 1] = lines
    end
  end
  local minds, answers = {}, {}
  local homes = get_all(run .. 'homes', members)
  for i, agent in ipairs(members) do
    if worker_of(homes[i]) ~= worker then
      minds[#minds + 1] = agent
      minds[#minds + 1] = call('HGETALL', run .. 'mind:' .. agent)
    end
    for _, part in ipairs(call('HGETALL', run .. 'memo:' .. agent)) do
      answers[#answers + 1] = part
    end
  end
  all('HDEL', run .. 'homes', members)
  return { id, text, seen(names, tonumber(step)), events, minds, answers }
end

local found = {}
for i, text in ipairs(get_all(run .. 'clusters', chosen)) do
  found[i] = about(chosen[i], text)
end
return found
