#!lua flags=allow-oom
-- The controller's lease. ARGV: 'take', holder, ms; 'renew', fence, ms; 'release', fence.

local what, who = take(), take()
if what == 'release' and state('until_ms') == '0' and tonumber(state('fence')) == who + 1 then
  return 0 -- already released, and the reply was lost
end
local refused = missing(what ~= 'take' and who or nil)
if refused then
  return refused
end
if what == 'release' then
  call('HSET', run .. 'state', 'until_ms', 0)
  return call('HINCRBY', run .. 'state', 'fence', 1)
end
local now = now_ms()
if what == 'take' then
  local holder = state('holder')
  if holder and holder ~= who and tonumber(state('until_ms')) > now then
    return redis.error_reply('HELD ' .. holder)
  end
  call('HSET', run .. 'state', 'holder', who, 'changes', 0)
  call('HINCRBY', run .. 'state', 'fence', 1)
  if state('server') ~= server_id() then
    accept_server()
  end
  if state('restarts') then -- the fences of lost leases are greater than the stored one
    local fence = math.max(tonumber(state('fence')), now)
    call('HSET', run .. 'state', 'fence', string.format('%.0f', fence))
  end
end
call('HSET', run .. 'state', 'until_ms', now + take_number())
return tonumber(state('fence'))
