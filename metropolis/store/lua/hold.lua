-- Extend a claim or give it back. ARGV: id, "number worker", lease in ms (-1: give it back).
-- Returns 0 if the claim is lost.

local refused = refusal()
if refused then
  return refused
end
local id, claim, lease = take(), take(), take_number()
if call('HGET', run .. 'claims', id) ~= claim then
  return 0
end
if lease >= 0 then
  call('ZADD', run .. 'leases', now_ms() + lease, id)
else
  unclaim(id)
  count('given_back')
end
return 1
