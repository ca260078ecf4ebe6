#!lua flags=no-writes
-- The last acknowledgement, and where everybody stands. ARGV: 1 if only the former is asked for.

local refused = refusal()
if refused then
  return refused
end
local last = '0-0'
if redis.call('EXISTS', run .. 'acks') == 1 then
  local about = redis.call('XINFO', 'STREAM', run .. 'acks')
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      last = about[i + 1]
    end
  end
end
if take() == '1' then
  return { last }
end
return { last, redis.call('HGETALL', run .. 'steps'), redis.call('HGETALL', run .. 'places') }
