-- Included before every script. KEYS[1] is the prefix of the run's keys, see redis.py's schema; the
-- arguments are consumed in order. A script checks everything before it writes, and makes as few
-- Redis calls as possible: a call costs about a microsecond, in each of a run's steps.

local run = KEYS[1]
local taken = 0
local call = redis.call

local function take()
  taken = taken + 1
  return ARGV[taken]
end

local function take_number()
  return tonumber(take())
end

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function state(field)
  return call('HGET', run .. 'state', field)
end

local function count(what, by)
  call('HINCRBY', run .. 'counts', what, by or 1)
end

-- ARGV: number, then a sum's name and its increment.
local function count_bought()
  for _ = 1, take_number() do
    call('HINCRBY', run .. 'bought', take(), take())
  end
end

-- The id of the server, which changes with a restart.
local function server_id()
  return string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- The error of all changes from now on, until a controller takes the lease.
local function lost()
  call('HSET', run .. 'state', 'lossy', server_id())
  return redis.error_reply('LOST')
end

-- The error of a missing run, or of another controller's fence; `fence` is optional, `current` is
-- given if the caller has read it. A fence that is yet to be given was lost with a restart.
local function missing(fence, current)
  current = current or state('fence')
  if not current then
    return redis.error_reply('NORUN')
  end
  if fence and tonumber(fence) > tonumber(current) then
    return lost()
  end
  if fence and fence ~= current then
    return redis.error_reply('FENCED ' .. (state('holder') or ''))
  end
end

-- The error of `missing`, or of a server that was restarted and may have lost commits, as long as
-- the controller has not accepted what is left. `about` is given if the caller has read it: fence,
-- server.
local function refusal(fence, about)
  about = about or call('HMGET', run .. 'state', 'fence', 'server')
  local refused = missing(fence, about[1])
  if refused then
    return refused
  end
  local server = server_id()
  if about[2] ~= server then
    return redis.error_reply(state('lossy') == server and 'LOST' or 'RESTARTED')
  end
end

-- The reply to a controller's call that has changed something: the number of its changes, and the
-- result.
local function changed(result)
  return { call('HINCRBY', run .. 'state', 'changes', 1), result }
end

-- The reply to one that has changed nothing that a restart could lose.
local function unchanged(result)
  return { tonumber(state('changes')), result }
end

local function last_acknowledgement()
  if call('EXISTS', run .. 'acks') == 1 then
    local about = call('XINFO', 'STREAM', run .. 'acks')
    for i = 1, #about, 2 do
      if about[i] == 'last-generated-id' then
        return about[i + 1]
      end
    end
  end
  return '0-0'
end

local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    found[#found + 1] = word
  end
  return found
end

-- A command with any number of arguments, in chunks of whole `width`s: `unpack` has a limit.
local function all(command, key, arguments, width)
  local most = 4000 - 4000 % (width or 1)
  for first = 1, #arguments, most do
    call(command, key, unpack(arguments, first, math.min(first + most - 1, #arguments)))
  end
end

-- HMGET of any number of fields.
local function get_all(hash, fields)
  if #fields <= 4000 then
    return fields[1] and call('HMGET', hash, unpack(fields)) or {}
  end
  local found = {}
  for first = 1, #fields, 4000 do
    local last = math.min(first + 3999, #fields)
    local part = call('HMGET', hash, unpack(fields, first, last))
    for i = 1, #part do
      found[first + i - 1] = part[i]
    end
  end
  return found
end

local function step_of(id)
  return string.match(id, '^%d+')
end

local function first_of(id)
  return string.match(id, ':(%d+)$')
end

-- The step up to which an agent can continue alone, a number, and the cells it may read until then.
local function lookahead_of(agent)
  local until_step, cells = string.match(call('HGET', run .. 'ahead', agent) or '', '^(%d+) (.*)$')
  return tonumber(until_step or 0), cells
end

-- Appended to the home of a late commit: its worker may have claimed the cluster again before, and
-- changed its copy of the minds.
local LATE = '\n'

-- The worker with valid copies of the minds; nil: there is none.
local function worker_of(home)
  return home and string.match(home, '^%d+ ([^\n]*)$')
end

-- Make a cluster without a home ready, and add a token to wake a waiter.
local function make_ready(id)
  call('ZADD', run .. 'ready', step_of(id), id)
  call('RPUSH', run .. 'tokens', 1)
end

-- Go on with this server, which may have lost commits that workers know: they get whole minds with
-- their next claims, and no cluster that was claimed for an earlier call. From now on a commit needs
-- its claim: one whose claim has expired may continue a lost commit.
local function accept_server()
  call('HSET', run .. 'state', 'server', server_id())
  call('HINCRBY', run .. 'state', 'restarts', 1)
  for _, worker in ipairs(call('HKEYS', run .. 'lasts')) do
    call('DEL', run .. 'inbox:' .. worker)
  end
  call('DEL', run .. 'homes', run .. 'asking', run .. 'tokens')
  for _ = 1, call('ZCARD', run .. 'ready') do
    call('RPUSH', run .. 'tokens', 1)
  end
end

-- Make a claimed cluster ready again; its worker may have changed the minds.
local function unclaim(id)
  call('HDEL', run .. 'claims', id)
  call('ZREM', run .. 'leases', id)
  call('HDEL', run .. 'homes', first_of(id))
  make_ready(id)
end

-- Remove a cluster from the queues; `members` are those it was dispatched with.
local function withdraw(id, members)
  all('HDEL', run .. 'busy', members)
  call('HDEL', run .. 'clusters', id)
  if call('HDEL', run .. 'claims', id) == 1 then
    call('ZREM', run .. 'leases', id)
    all('HDEL', run .. 'homes', members)
  else
    call('ZREM', run .. 'ready', id)
  end
end

-- The agents' next nodes and minds: number, then agent, position, cells, number of changed parts of
-- its mind, name, part, ..., number of removed parts, name, ... Adds to `before`, if given, what
-- it replaces: agent -> node, names and bodies of parts of the mind.
local function write_nodes(step, kept, before)
  local nodes = {}
  for _ = 1, take_number() do
    local agent = take()
    nodes[#nodes + 1] = agent
    nodes[#nodes + 1] = step .. '\n' .. take() .. '\n' .. take()
    local mind, changed, gone = run .. 'mind:' .. agent, {}, {}
    for i = 1, 2 * take_number() do
      changed[i] = take()
    end
    for i = 1, take_number() do
      gone[i] = take()
    end
    if before then
      local names = { unpack(gone) }
      for i = 1, #changed, 2 do
        names[#names + 1] = changed[i]
      end
      local node = call('HGET', run .. 'nodes', agent)
      before[agent] = { node = node, names = names, bodies = get_all(mind, names) }
    end
    all('HSET', mind, changed, 2)
    all('HDEL', mind, gone)
    if kept then
      call('COPY', mind, run .. 'kept:' .. agent, 'REPLACE')
    end
  end
  all('HSET', run .. 'nodes', nodes, 2)
end

-- Keep an answer until its step is collected; returns whether it is new.
local function keep_answer(agent, step, bought, completion)
  local memo = run .. 'memo:' .. step .. ':' .. agent
  if call('HGET', memo, bought) == completion then
    return false
  end
  call('HSET', memo, bought, completion)
  call('SADD', run .. 'memos:' .. step, agent)
  return true
end

-- Versions seen from step `since` on: number, then name, cell, body ('': the entity is gone).
-- Returns the names.
local function write_versions(since)
  local names, cells, bodies, lists, stale = {}, {}, {}, {}, {}
  for i = 1, take_number() do
    names[i], cells[i] = take(), take()
    bodies[2 * i - 1], bodies[2 * i] = since .. ' ' .. names[i], take()
  end
  if not names[1] then
    return names
  end
  for i, before in ipairs(get_all(run .. 'sinces', names)) do
    local name, version = names[i], since .. '@' .. cells[i]
    lists[2 * i - 1], lists[2 * i] = name, before and (before .. ' ' .. version) or version
    if before or bodies[2 * i] == '' then
      stale[#stale + 1] = since
      stale[#stale + 1] = name
    end
    local last = before and string.match(before, '@(%S*)$')
    if bodies[2 * i] ~= '' and last ~= cells[i] then
      call('SADD', run .. 'cell:' .. cells[i], name)
    end
  end
  all('HSET', run .. 'bodies', bodies, 2)
  all('HSET', run .. 'sinces', lists, 2)
  for first = 1, #stale, 4000 do
    call('ZADD', run .. 'stale', 'NX', unpack(stale, first, math.min(first + 3999, #stale)))
  end
  return names
end

-- Events that `step` perceives: number, then cell, line.
local function write_events(step)
  local events, cells, lines = run .. 'events:' .. step, {}, {}
  for _ = 1, take_number() do
    local cell, line = take(), take()
    if not lines[cell] then
      cells[#cells + 1], lines[cell] = cell, {call('HGET', events, cell) or nil}
    end
    table.insert(lines[cell], line)
  end
  for _, cell in ipairs(cells) do
    call('HSET', events, cell, table.concat(lines[cell], '\n'))
  end
end

-- What the steps from `step` to `last` see of `names`, as a flat list of since, name, body.
local function seen(names, step, last)
  local fields, found = {}, {}
  local function find(since, name)
    fields[#fields + 1] = since .. ' ' .. name
    found[3 * #fields - 2], found[3 * #fields - 1] = since, name
  end
  for i, sinces in ipairs(get_all(run .. 'sinces', names)) do
    local newest, later
    for since in string.gmatch(sinces or '', '(%d+)@') do
      if tonumber(since) <= step then
        newest = since
      elseif tonumber(since) <= last then
        later = later or {}
        later[#later + 1] = since
      end
    end
    if newest then
      find(newest, names[i])
    end
    for _, since in ipairs(later or {}) do
      find(since, names[i])
    end
  end
  for i, body in ipairs(get_all(run .. 'bodies', fields)) do
    found[3 * i] = body
  end
  return found
end
