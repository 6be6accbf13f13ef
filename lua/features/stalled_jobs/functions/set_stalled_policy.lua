-- set_stalled_policy: set the stalled-job policy of the queue.
-- KEYS 1 meta   ARGV 1 packed {interval, max_stalled, grace}   -> 1
--   each false = unchanged, -1 = removed; interval: ms between checks; grace: ms after the end of a lock until the job
--   counts as stalled
-- Bound: constant.

local function set(q, field, value)
  if value == -1 then
    redis.call('HDEL', q.meta, field)
  elseif value then
    redis.call('HSET', q.meta, field, G.int(value))
  end
end

G.export('set_stalled_policy', { 'allow-oom' }, function(q, r)
  set(q, 'stalledInterval', r.interval)
  set(q, 'maxStalledCount', r.max_stalled)
  set(q, 'stalledGrace', r.grace)
  return 1
end)
