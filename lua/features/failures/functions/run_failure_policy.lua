-- run_failure_policy: execute the failure policy of a queue: look at newly failed jobs, requeue due ones, delete old
-- ones, one bounded batch of each per call.
-- KEYS 1 meta   ARGV 1 packed {is_first}   -> packed {retried, deleted, more, wait, keyed}
-- is_first: 1 = the first call of a round. A peer that fails a job uses its own clock, which may lag: a round looks at
-- the jobs of the last LAG_MS again.
-- more: 1 = call again   wait: ms until the next job is due, -1 = none
-- keyed: due jobs for which the client must decide (requeue_keyed); without a decision, they are due again later
-- Calls of several clients at a time do no harm. Bound: BATCH jobs of each kind.

local F = G.failures
local SCORED = G.rows.scored
local BATCH, LAG_MS = 200, 10000

local function set_time(q, policy, id, job)
  local at = F.next_retry(policy, job.retries, job.failed_at, job.reason, job.revoked)
  if at then redis.call('ZADD', q.failure_retries, G.int(at), id) end
  return at
end

-- Give newly failed jobs a time. Return whether there may be more.
local function scan(q, policy, now, is_first)
  local cursor = redis.call('HGET', q.meta, 'failureScan') or ''
  local score = tonumber(string.match(cursor, '^(.-)@') or '')
  if is_first and score and score > now - LAG_MS then cursor = G.int(now - LAG_MS) .. '@' end
  local found = F.slice(q, cursor, '-inf', '+inf', BATCH)
  for i = 1, #found, 2 do
    local job = F.read(q, found[i])
    if job then set_time(q, policy, found[i], job) end
  end
  if #found > 0 then redis.call('HSET', q.meta, 'failureScan', found[#found] .. '@' .. found[#found - 1]) end
  return #found == 2 * BATCH
end

-- Requeue jobs whose time has come; add those for which the client must decide to `keyed`. Return how many were requeued, and
-- whether there may be more.
local function retry(q, policy, now, keyed)
  local due = redis.call('ZRANGEBYSCORE', q.failure_retries, '-inf', G.int(now), 'LIMIT', 0, BATCH)
  local retried = 0
  for _, id in ipairs(due) do
    local job = F.read(q, id)
    -- It may have been requeued and have failed again since its time was set.
    local at = job and set_time(q, policy, id, job)
    if not at then
      redis.call('ZREM', q.failure_retries, id)
    elseif at <= now and F.requeue(q, id, now, keyed, job.retries + 1) then
      redis.call('ZREM', q.failure_retries, id)
      G.emit(q.events, 'retried', id)
      retried = retried + 1
    elseif at <= now then
      -- Another job has its deduplication id, or the client decides.
      redis.call('ZADD', q.failure_retries, G.int(now + policy.interval), id)
    end
  end
  return retried, #due == BATCH
end

-- Delete jobs that are too old, or more than the policy keeps. Return how many, and whether there may be more.
local function delete_old(q, policy, now)
  local ids, excess = {}, policy.entries > 0 and redis.call('ZCARD', q.failed) - policy.entries or 0
  if policy.age > 0 then
    ids = redis.call('ZRANGEBYSCORE', q.failed, '-inf', G.int(now - policy.age), 'LIMIT', 0, BATCH)
  end
  if excess > #ids then ids = redis.call('ZRANGE', q.failed, 0, math.min(excess, BATCH) - 1) end
  local ended = {}
  for _, id in ipairs(ids) do
    local state = G.pcall('HGET', q.J .. id, 'state')
    -- A job that a peer has requeued and left in the set is only removed from it.
    if state == 'failed' or not state then ended[#ended + 1] = id else redis.call('ZREM', q.failed, id) end
  end
  F.purge(q, ended, now)
  return #ended, #ids == BATCH
end

G.export('run_failure_policy', { 'allow-oom' }, function(q, r)
  local policy, now = F.policy(q), G.now(q)
  if not policy then return G.replies.run_failure_policy({ retried = 0, deleted = 0, more = 0, wait = -1, keyed = {} }) end
  local retried, scans, retries, keyed = 0, false, false, {}
  if policy.interval > 0 then
    scans = scan(q, policy, now, r.is_first == 1)
    retried, retries = retry(q, policy, now, keyed)
  end
  local deleted, deletes = delete_old(q, policy, now)
  local head = redis.call('ZRANGE', q.failure_retries, 0, 0, 'WITHSCORES')
  return G.replies.run_failure_policy({
    retried = retried, deleted = deleted, more = (scans or retries or deletes) and 1 or 0,
    wait = head[SCORED.score] and math.max(0, G.num(head[SCORED.score]) - now) or -1, keyed = keyed,
  })
end)
