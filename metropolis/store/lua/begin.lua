-- A new run. ARGV: info, step, nodes, versions, events. Returns 0 when it exists.

if redis.call('EXISTS', run .. 'info') == 1 then
  return 0
end
redis.call('SET', run .. 'info', take())
local step = take()
redis.call('HSET', run .. 'state', 'fence', 0, 'floor', step, 'released', step, 'newest', step,
  'claimed', 0)
write_nodes(step)
write_versions(step)
write_events(step)
return 1
