-- The failure policy of a queue: requeue failed jobs automatically, and delete old ones (docs/learn/failures.md).
-- P:meta, `failurePolicy`: `<interval ms>|<retries>|<max age ms>|<max entries>`; 0 = not set. `failureScan`:
-- `<score>@<id>`, the last member of `failed` that was looked at.
-- P:failure-retries: the jobs that will be requeued, by time. It is derived from `failed`, so that failing a job costs
-- nothing and jobs that a peer failed are found too.
-- Field `autoRetries` of a job: how often it was requeued automatically since it was added or requeued.

local F = G.failures
local PATTERN = '^(%d+)|(%d+)|(%d+)|(%d+)$'
local EXPONENT_MAX = 40

-- Return {interval, retries, age, entries}, or nil without a policy. Read once per call.
F.policy = function(q)
  local known = rawget(q, 'failure_policy')
  if known == nil then
    local text = G.pcall('HGET', q.meta, 'failurePolicy')
    local interval, retries, age, entries = string.match(type(text) == 'string' and text or '', PATTERN)
    known = interval and { interval = G.count_of(interval), retries = G.count_of(retries), age = G.count_of(age),
      entries = G.count_of(entries) } or false
    rawset(q, 'failure_policy', known)
  end
  return known or nil
end

-- Return when a failed job will be requeued, epoch ms; nil = never. retries: how often it was. at: when it failed.
F.next_retry = function(policy, retries, at, reason, revoked)
  if not policy or policy.interval == 0 or retries >= policy.retries then return nil end
  if reason == F.EXPIRED or revoked == '1' then return nil end
  return G.clamped_time(at + policy.interval * 2 ^ math.min(math.max(0, retries - 1), EXPONENT_MAX))
end

-- Return whether the policy may have something to do: the queue has one, and failed jobs.
F.has_work = function(q)
  return F.policy(q) ~= nil and (redis.call('EXISTS', q.failed) == 1)
end
