-- Count failed jobs by reason and job name, so that statistics read no jobs.
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
