#!lua flags=allow-oom
-- Replace the description of the run. ARGV: fence, info.

local refused = missing(take())
if refused then
  return refused
end
return call('SET', run .. 'info', take())
