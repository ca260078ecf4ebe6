-- Begin a run. ARGV: mark, info, 1 if it is retractable, step, nodes, versions, events. Returns 0
-- if the run exists, unless it was begun with the same mark: the call is resent after a lost reply.

local mark = take()
if call('EXISTS', run .. 'info') == 1 then
  return state('mark') == mark and 1 or 0
end
call('SET', run .. 'info', take())
local retractable, step = take(), take()
call('HSET', run .. 'state', 'mark', mark, 'retractable', retractable, 'server', server_id())
call('HSET', run .. 'state', 'fence', 0, 'floor', step, 'released', step, 'newest', step)
write_nodes(step, false)
write_versions(step)
write_events(step)
return 1
