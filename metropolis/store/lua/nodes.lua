#!lua flags=no-writes
-- The last acknowledgement, the nodes of all agents, and the released step. ARGV: 1 to return only
-- the acknowledgement.

local refused = refusal()
if refused then
  return refused
end
local last = '0-0'
if call('EXISTS', run .. 'acks') == 1 then
  local about = call('XINFO', 'STREAM', run .. 'acks')
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      last = about[i + 1]
    end
  end
end
if take() == '1' then
  return { last }
end
return { last, call('HGETALL', run .. 'nodes'), state('released') }
