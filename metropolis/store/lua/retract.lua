-- Undo the commits of an agent from a step on, and those of its clusters' members from then on.
-- ARGV: fence, agent, step.

local refused = refusal(take())
if refused then
  return refused
end
local retracted, from = take(), take_number()
if state('retractable') ~= '1' then
  return redis.error_reply('FINAL')
end
if from < tonumber(state('released')) then
  return redis.error_reply('COLLECTED ' .. state('released'))
end

local steps, replaced = {}, {}
local function step_at(agent)
  steps[agent] = steps[agent] or tonumber(step_of(call('HGET', run .. 'nodes', agent)))
  return steps[agent]
end
local function before(step, agent)
  local key = run .. 'before:' .. string.format('%d', step)
  local field = key .. ' ' .. agent
  replaced[field] = replaced[field] or cmsgpack.unpack(call('HGET', key, agent))
  return replaced[field]
end

-- The agents that lose commits, and the step to which each is rolled back.
local first, unseen = { [retracted] = math.min(from, step_at(retracted)) }, { retracted }
while unseen[1] do
  local agent = table.remove(unseen)
  for step = first[agent], step_at(agent) - 1 do
    for _, member in ipairs(before(step, agent).members) do
      if (first[member] or step_at(member)) > step then
        first[member] = step
        unseen[#unseen + 1] = member
      end
    end
  end
end

local function forget(name, since)
  local versions, left, remain, cell = call('HGET', run .. 'sinces', name), {}, {}, ''
  for _, version in ipairs(words(versions)) do
    local its_since, its_cell = string.match(version, '^(%d+)@(.*)$')
    if its_since == since then
      cell = its_cell
    else
      left[#left + 1] = version
      remain[its_cell] = true
    end
  end
  call('HDEL', run .. 'bodies', since .. ' ' .. name)
  if cell ~= '' and not remain[cell] then
    call('SREM', run .. 'cell:' .. cell, name)
  end
  if left[1] then
    call('HSET', run .. 'sinces', name, table.concat(left, ' '))
  else
    call('HDEL', run .. 'sinces', name)
    call('ZREM', run .. 'stale', name)
  end
end

local agents = cjson.decode(call('GET', run .. 'info')).agents
local function forget_events(since, members)
  local is_source, key = {}, run .. 'events:' .. since
  for _, member in ipairs(members) do
    is_source[agents[member + 1]] = true
  end
  local cells = call('HGETALL', key)
  for i = 1, #cells, 2 do
    local left = {}
    for line in string.gmatch(cells[i + 1], '[^\n]+') do
      if not is_source[cjson.decode(line)[2].source] then
        left[#left + 1] = line
      end
    end
    if left[1] then
      call('HSET', key, cells[i], table.concat(left, '\n'))
    else
      call('HDEL', key, cells[i])
    end
  end
end

local kept_step, is_undone = tonumber(state('kept_step') or 0), {}
for agent, low in pairs(first) do
  for step = step_at(agent) - 1, low, -1 do
    local what, mind = before(step, agent), run .. 'mind:' .. agent
    for i, name in ipairs(what.names) do
      if what.bodies[i] then
        call('HSET', mind, name, what.bodies[i])
      else
        call('HDEL', mind, name)
      end
    end
    if not is_undone[what.entry] then
      is_undone[what.entry] = true
      local since = string.format('%d', step + 1)
      for _, name in ipairs(what.written) do
        forget(name, since)
      end
      forget_events(since, what.members)
      call('XDEL', run .. 'acks', what.entry)
      call('ZREM', run .. 'acked', what.entry)
      count('retracted')
    end
    call('HDEL', run .. 'before:' .. string.format('%d', step), agent)
  end
  if low < step_at(agent) then
    call('HSET', run .. 'nodes', agent, before(low, agent).node)
    call('HDEL', run .. 'homes', agent)
    call('HDEL', run .. 'ahead', agent)
    if low < kept_step then
      call('DEL', run .. 'kept:' .. agent)
    end
    local id = call('HGET', run .. 'busy', agent)
    if id then
      local members = words(call('HGET', run .. 'clusters', id))
      table.remove(members, 1)
      withdraw(id, members)
    end
  end
end
return changed(1)
