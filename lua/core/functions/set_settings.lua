-- set_settings: set options of a queue, which are fields of P:meta, in one step.
-- KEYS 1 meta   ARGV 1 packed {name, text, ...}, flat   -> 1
--   text: the value; false = delete the field. A text in an unusual form is as none.
--   maxLenEvents: how many events the queue keeps. Later events trim the excess.
--   timeline: `<sample, in millionths>|<entries>` (features/timeline/functions/_timeline.lua)
--   metricsByName: `<minutes kept>|<names>` (features/metrics_by_name/functions/_metrics_by_name.lua)
--   stalledInterval: ms between checks; maxStalledCount; stalledGrace: ms after the end of a lock until the job counts as
--   stalled (features/stalled_jobs/policy.lua)
--   attemptHistory, failurePolicy (features/failures/functions)
--   failureCounts: no field; deletes the counts of failures
-- errors: ERR unknown setting (nothing was set)
-- Bound: the fields given.
local NAMES = G.positions({ 'maxLenEvents', 'timeline', 'metricsByName', 'stalledInterval', 'maxStalledCount', 'stalledGrace',
  'attemptHistory', 'failurePolicy', 'failureCounts' })

local function set(q, name, text)
  if text then redis.call('HSET', q.meta, name, text) else redis.call('HDEL', q.meta, name) end
  if name == 'failureCounts' then redis.call('UNLINK', q.failure_counts) end
  if name == 'failurePolicy' then
    -- The times are computed again, with the new interval, from the oldest failed job on.
    redis.call('HDEL', q.meta, 'failureScan')
    redis.call('UNLINK', q.failure_retries)
  end
end

G.export('set_settings', { 'allow-oom' }, function(q, r)
  for i = 1, #r.settings, 2 do
    if not NAMES[r.settings[i]] then return redis.error_reply('ERR unknown setting ' .. tostring(r.settings[i])) end
  end
  for i = 1, #r.settings, 2 do set(q, r.settings[i], r.settings[i + 1]) end
  return 1
end)
