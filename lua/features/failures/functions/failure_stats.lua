-- failure_stats: return how many jobs of a queue have failed.
-- KEYS 1 meta   -> packed {kept, oldest, newest, retries, counts}
--   kept: members of `failed`   oldest, newest: when they failed, -1 = none   retries: jobs that will be requeued
--   counts: flat map of P:failure-counts
-- Bound: COUNTS_MAX counters; a hash with more, which a foreign client has written, is not read.
-- Also counts failed jobs by reason and job name, so that statistics read no jobs.
-- P:failure-counts: `<reason>|<name>` -> how many jobs have failed; the name is empty for jobs beyond PAIRS_MAX pairs.
-- `since`: epoch ms of the first.

local F = G.failures
local PAIRS_MAX = 1000

F.count = function(q, reason, name, now)
  local field = reason .. '|' .. name
  local count = G.pcall('HINCRBY', q.failure_counts, field, 1)
  -- Figures must not prevent the report of a failure: a field or key that a foreign client has written is left alone.
  if count ~= 1 then return end
  local fields = redis.call('HLEN', q.failure_counts)
  if fields == 1 then
    redis.call('HSET', q.failure_counts, 'since', G.int(now))
  elseif fields > PAIRS_MAX + 1 and name ~= '' then
    redis.call('HDEL', q.failure_counts, field)
    G.pcall('HINCRBY', q.failure_counts, reason .. '|', 1)
  end
end

local function time_at(q, position)
  local _, at = G.member_at(q.failed, position)
  return G.num(at, -1)
end

local COUNTS_MAX = 3000

G.export('failure_stats', { 'no-writes' }, function(q)
  local counts = {}
  local fields = G.size('HLEN', q.failure_counts)
  if fields > 0 and fields <= COUNTS_MAX then
    counts = redis.call('HGETALL', q.failure_counts)
  end
  return {
    kept = redis.call('ZCARD', q.failed), oldest = time_at(q, 0), newest = time_at(q, -1),
    retries = G.size('ZCARD', q.failure_retries), counts = counts,
  }
end)
