-- failure_stats: return how many jobs of a queue have failed.
-- KEYS 1 meta   -> packed {kept, oldest, newest, retries, counts}
--   kept: members of `failed`   oldest, newest: when they failed, -1 = none   retries: jobs that will be requeued
--   counts: flat map of P:failure-counts (_counters.lua)
-- Bound: COUNTS_MAX counters; a hash with more, which a foreign client has written, is not read.

local SCORED = G.rows.scored
local function time_at(q, position)
  local found = redis.call('ZRANGE', q.failed, position, position, 'WITHSCORES')
  return found[SCORED.score] and G.num(found[SCORED.score], -1) or -1
end

local COUNTS_MAX = 3000

G.export('failure_stats', { 'no-writes' }, function(q)
  local counts = {}
  local fields = G.pcall('HLEN', q.failure_counts)
  if type(fields) == 'number' and fields > 0 and fields <= COUNTS_MAX then
    counts = redis.call('HGETALL', q.failure_counts)
  end
  local retries = G.pcall('ZCARD', q.failure_retries)
  return G.replies.failure_stats({
    kept = redis.call('ZCARD', q.failed), oldest = time_at(q, 0), newest = time_at(q, -1),
    retries = type(retries) == 'number' and retries or 0, counts = counts,
  })
end)
