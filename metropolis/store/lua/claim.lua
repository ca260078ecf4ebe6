-- Claim the ready clusters of the lowest steps. ARGV: number, worker, lease in ms, affinity in
-- steps, maximum number of clusters, 1 to exclude clusters that another worker ran last, ms that
-- the worker waits. Returns the result of `described`; if nothing is ready, the ms until the next
-- claim expires (-1: there is none), and registers the worker in `asking`: a dispatch then claims
-- for it clusters that it ran last, and puts them into its inbox. A repeated number returns the
-- same clusters: the reply was lost.

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

-- An id contains the step and the first member, whose last worker is the cluster's home. Ties go to
-- the earlier candidate, which has the lower step.
local function choose()
  local candidates = call('ZRANGE', run .. 'ready', 0, own and -1 or math.max(32, most) - 1)
  local firsts, costs, order = {}, {}, {}
  for i, id in ipairs(candidates) do
    firsts[i] = first_of(id)
  end
  for i, home in ipairs(get_all(run .. 'homes', firsts)) do
    local last = worker_of(home)
    local foreign = last ~= worker
    if not (own and last and foreign) then
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
  if found[1] then -- for an earlier call, which stopped waiting
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
