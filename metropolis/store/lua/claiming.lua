-- Included before the scripts that give clusters to workers.

-- Append the number of values, then the values.
local function append(found, values)
  found[#found + 1] = #values
  for _, value in ipairs(values) do
    found[#found + 1] = value
  end
end

-- Append a cluster and its data to `found`: id, text, lookahead (0: none); versions, events, minds
-- (agent, parts of each), answers, each preceded by its number.
local function describe(found, worker, id, text)
  local members = words(text)
  local step = table.remove(members, 1)
  local names, events = {}, {}
  local cells, keys, is_known = {}, {}, {}
  local until_step, surroundings = 0, {}
  if not members[2] then
    until_step, surroundings[1] = lookahead_of(members[1])
  end
  if until_step <= step + 1 then
    until_step, surroundings = 0, {}
    for i, node in ipairs(get_all(run .. 'nodes', members)) do
      surroundings[i] = string.match(node, '\n([^\n]*)$')
    end
  end
  for _, around in ipairs(surroundings) do
    for cell in string.gmatch(around, '%S+') do
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
  local last = tonumber(step)
  if until_step > 0 then -- the effects of agents that are ahead
    last = math.min(until_step - 1, tonumber(state('newest')))
  end
  for later = tonumber(step), last do
    for _, lines in ipairs(get_all(run .. 'events:' .. string.format('%d', later), cells)) do
      if lines then
        events[#events + 1] = lines
      end
    end
  end
  found[#found + 1], found[#found + 2], found[#found + 3] = id, text, until_step
  append(found, seen(names, tonumber(step), last))
  append(found, events)
  local foreign, answers = {}, {}
  for i, home in ipairs(get_all(run .. 'homes', members)) do
    if worker_of(home) ~= worker then
      foreign[#foreign + 1] = members[i]
    end
    for _, part in ipairs(call('HGETALL', run .. 'memo:' .. step .. ':' .. members[i])) do
      answers[#answers + 1] = part
    end
  end
  found[#found + 1] = #foreign
  for _, agent in ipairs(foreign) do
    found[#found + 1] = agent
    append(found, call('HGETALL', run .. 'mind:' .. agent))
  end
  append(found, answers)
end

-- The reply to a worker that has claimed the clusters `ids` with its call `number`: the number, the
-- number of clusters, and each of them.
local function described(number, worker, ids)
  local found = { number, #ids }
  for i, text in ipairs(get_all(run .. 'clusters', ids)) do
    describe(found, worker, ids[i], text)
    local members = words(text)
    table.remove(members, 1)
    all('HDEL', run .. 'homes', members)
  end
  return found
end

-- Let `worker` claim the ready clusters `ids` for `lease` ms.
local function claim_all(number, worker, lease, ids, now)
  local claims, leases = {}, {}
  for i, id in ipairs(ids) do
    claims[2 * i - 1], claims[2 * i] = id, number .. ' ' .. worker
    leases[2 * i - 1], leases[2 * i] = now + lease, id
  end
  call('ZREM', run .. 'ready', unpack(ids))
  call('HSET', run .. 'claims', unpack(claims))
  call('HSET', run .. 'lasts', worker, number .. ' ' .. table.concat(ids, ' '))
  call('ZADD', run .. 'leases', unpack(leases))
  count('claims', #ids)
end
