-- The ready clusters of the lowest steps. ARGV: number, worker, lease in ms, affinity in steps, how
-- many at most, 1 if none that another worker ran last, how many ms the worker waits. Returns what
-- `described` does; when nothing is ready, the ms until the next claim runs out (-1: none will), and
-- then the worker has asked: what is dispatched that it ran last is claimed for it and put into its
-- inbox. The number that the worker has used last gets the clusters it has got before: its reply was
-- lost.

local refused = refusal()
if refused then
  return refused
end
local number, worker, lease, affinity = take(), take(), take_number(), take_number()
local most, own, wait = take_number(), take() == '1', take_number()
local inbox = run .. 'inbox:' .. worker
local now = now_ms()

local expired = call('ZRANGEBYSCORE', run .. 'leases', '-inf', now)
for _, id in ipairs(expired) do
  unclaim(id)
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
    firsts[i] = first_of(id)
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

local last = words(call('HGET', run .. 'lasts', worker) or '')
if last[1] == number then
  local again = {}
  table.remove(last, 1)
  for i, holder in ipairs(get_all(run .. 'claims', last)) do
    if holder == number .. ' ' .. worker then
      again[#again + 1] = last[i]
    end
  end
  call('DEL', inbox)
  if again[1] then
    return described(number, worker, again)
  end
else
  local found = call('LRANGE', inbox, 0, -1)
  if found[1] then -- for an earlier call, which did not wait so long
    call('DEL', inbox)
    return found
  end
end

local chosen = choose()
if chosen[1] then
  claim_all(number, worker, lease, chosen, now)
  return described(number, worker, chosen)
end
call('DEL', run .. 'tokens')
if wait > 0 then
  local until_ms = string.format('%.0f', now + wait)
  call('HSET', run .. 'asking', worker, table.concat({ until_ms, number, lease, most }, ' '))
end
local next = call('ZRANGE', run .. 'leases', 0, 0, 'WITHSCORES')
return next[2] and math.max(1, next[2] - now) or -1
