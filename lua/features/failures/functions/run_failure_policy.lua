-- run_failure_policy: execute the failure policy of a queue: look at newly failed jobs, requeue due ones, delete old
-- ones, one bounded batch of each per call.
-- KEYS 1 meta   ARGV 1 packed {is_first}   -> packed {retried, deleted, more, wait}
-- is_first: 1 = the first call of a round. A peer that fails a job uses its own clock, which may lag: a round looks at
-- the jobs of the last LAG_MS again.
-- more: 1 = call again   wait: ms until the next job is due, -1 = none
-- Calls of several clients at a time do no harm. Bound: BATCH jobs of each kind.
-- The failure policy of a queue: requeue failed jobs automatically, and delete old ones (docs/learn/failures.md).
-- P:meta, `failurePolicy`: `<interval ms>|<retries>|<max age ms>|<max entries>`; 0 = not set. `failureScan`:
-- `<score>@<id>`, the last member of `failed` that was looked at.
-- P:failure-retries: the jobs that will be requeued, by time. It is derived from `failed`, so that failing a job costs
-- nothing and jobs that a peer failed are found too.
-- Field `autoRetries` of a job: how often it was requeued automatically since it was added or requeued.

local F = G.failures
local PATTERN = '^(%d+)|(%d+)|(%d+)|(%d+)$'
local EXPONENT_MAX = 40

local function read_policy(q)
  local interval, retries, age, entries = G.match(G.pcall('HGET', q.meta, 'failurePolicy'), PATTERN)
  return interval and { interval = G.count_of(interval), retries = G.count_of(retries), age = G.count_of(age),
    entries = G.count_of(entries) } or false
end

-- Return {interval, retries, age, entries}, or nil without a policy. Read once per call.
F.policy = function(q) return G.once(q, 'failure_policy', read_policy) or nil end

-- Return when a failed job will be requeued, epoch ms; nil = never. retries: how often it was. at: when it failed.
F.next_retry = function(policy, retries, at, reason, revoked)
  if not policy or policy.interval == 0 or retries >= policy.retries then return nil end
  if reason == F.EXPIRED or reason == F.CANCELLED or revoked == '1' then return nil end
  return G.clamped_time(at + policy.interval * 2 ^ math.min(math.max(0, retries - 1), EXPONENT_MAX))
end

-- Return whether the policy may have something to do: the queue has one, and failed jobs.
F.has_work = function(q)
  return F.policy(q) ~= nil and (redis.call('EXISTS', q.failed) == 1)
end

local BATCH, LAG_MS = 200, 10000

local function set_time(q, policy, id, job, now)
  local at = F.next_retry(policy, job.retries, math.min(job.failed_at, now), job.reason, job.revoked)
  if at then redis.call('ZADD', q.failure_retries, G.int(at), id) end
  return at
end

-- Give newly failed jobs a time. Return whether there may be more.
local function scan(q, policy, now, is_first)
  local cursor = redis.call('HGET', q.meta, 'failureScan') or ''
  local score = tonumber(string.match(cursor, '^(.-)@'))
  if is_first and score and score > now - LAG_MS then cursor = G.int(now - LAG_MS) .. '@' end
  local found, after = G.set_slice(q.failed, score and cursor or '', BATCH, '-inf', '+inf')
  for i = 1, #found, 2 do
    local job = F.read(q, found[i])
    if job then set_time(q, policy, found[i], job, now) end
  end
  if #found > 0 then redis.call('HSET', q.meta, 'failureScan', G.slice_end(found)) end
  return after ~= ''
end

-- Requeue jobs whose time has come. Return how many were requeued, and whether there may be more.
local function retry(q, policy, now)
  local due = redis.call('ZRANGEBYSCORE', q.failure_retries, '-inf', G.int(now), 'LIMIT', 0, BATCH)
  local retried = 0
  for _, id in ipairs(due) do
    local job = F.read(q, id)
    -- It may have been requeued and have failed again since its time was set.
    local at = job and set_time(q, policy, id, job, now)
    if at and job.failed_at > now then at = now end -- the clock was set back
    if not at then
      redis.call('ZREM', q.failure_retries, id)
    elseif at <= now and F.requeue(q, id, now, job.retries + 1) then
      redis.call('ZREM', q.failure_retries, id)
      G.emit(q.events, 'retried', id)
      retried = retried + 1
    elseif at <= now then
      -- Another job has its deduplication id.
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
  return F.purge(q, ids, now), #ids == BATCH
end

G.export('run_failure_policy', { 'allow-oom' }, function(q, r)
  local policy, now = F.policy(q), G.now(q)
  if not policy then return { retried = 0, deleted = 0, more = 0, wait = -1 } end
  local retried, scans, retries = 0, false, false
  if policy.interval > 0 then
    scans = scan(q, policy, now, r.is_first == 1)
    retried, retries = retry(q, policy, now)
  end
  local deleted, deletes = delete_old(q, policy, now)
  return {
    retried = retried, deleted = deleted, more = (scans or retries or deletes) and 1 or 0,
    wait = G.until_first(q.failure_retries, now),
  }
end)
