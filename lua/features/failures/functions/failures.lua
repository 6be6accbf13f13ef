-- failures_page, failures_change: read and change the failed jobs of a queue.
-- failures_page: return failed jobs, oldest first.
--   KEYS 1 meta   ARGV 1 packed {reasons, name, low, high, cursor, count}   -> packed {rows, cursor}
--   reasons: list, empty = all   name: false = all   low, high: when they failed, epoch ms, false = no bound
--   rows: G.rows.failure   cursor: '' at first and at the end. A page may have few or no rows before the end.
-- failures_change: requeue or delete failed jobs, oldest first.
--   KEYS 1 meta   ARGV 1 packed {action, reasons, name, low, high, cursor, count, total}
--   -> packed {changed, cursor, high}
--   action: 'retry' (cancelled jobs only if `reasons` names them) | 'purge'
--   total: changed by the previous calls; the last call writes one event for all of them,
--   as peers do (jobId = count)   high: of the reply: for the next call; without one, jobs that fail meanwhile stay
-- Bound: PAGE_MAX failed jobs per call.

local F = G.failures
local PAGE_MAX = 200
local FIELDS = { 'state', 'name', 'failureReason', 'finishedOn', 'failedReason', 'failedType', 'attemptsMade',
  'autoRetries', 'revoked' }
local AT = G.positions(FIELDS)

F.read = function(q, id)
  local h = G.pcall('HMGET', q.J .. id, unpack(FIELDS))
  if h.err or h[AT.state] ~= 'failed' then return nil end
  return {
    name = h[AT.name] or '', failed_at = G.count_of(h[AT.finishedOn]), error = h[AT.failedReason] or '',
    reason = F.reason_of_job(h[AT.failureReason], h[AT.finishedOn], h[AT.failedReason], h[AT.failedType]),
    failed_type = h[AT.failedType] or '', attempts = G.count_of(h[AT.attemptsMade]),
    retries = G.count_of(h[AT.autoRetries]), revoked = h[AT.revoked],
  }
end

local function matches(job, wanted, name)
  return (not wanted or wanted[job.reason]) and (not name or name == job.name)
end

-- Call visit(id, job) for the failed jobs of a page that match the filter. Return the next cursor.
local function each(q, r, visit)
  local wanted = #r.reasons > 0 and G.positions(r.reasons)
  local low, high = r.low and G.int(r.low) or '-inf', r.high and G.int(r.high) or '+inf'
  local count = math.min(r.count, PAGE_MAX)
  local found, after = G.set_slice(q.failed, r.cursor, count, low, high)
  for i = 1, #found, 2 do
    if r.high and tonumber(found[i + 1]) > r.high then return '' end
    local job = F.read(q, found[i])
    if job and matches(job, wanted, r.name) then visit(found[i], job) end
  end
  return after
end

G.export('failures_page', { 'no-writes' }, function(q, r)
  local rows, policy = {}, F.policy(q)
  local cursor = each(q, r, function(id, job)
    local next_retry = F.next_retry(policy, job.retries, job.failed_at, job.reason, job.revoked)
    rows[#rows + 1] = G.new.failure({
      id = id, name = job.name, reason = job.reason, error = job.error, failed_type = job.failed_type,
      failed_at = job.failed_at, attempts = job.attempts, retries = job.retries, next_retry = next_retry or false,
      expires = policy and policy.age > 0 and job.failed_at + policy.age or false,
    })
  end)
  return { rows = rows, cursor = cursor }
end)

-- Delete failed jobs with all their keys. Return how many there were.
F.purge = function(q, ids, now)
  if #ids > 0 then G.pcall('ZREM', q.failure_retries, unpack(ids)) end
  return #G.delete_ended(q, q.failed, 'failed', ids, now)
end

-- Return whether the job was requeued: no other job has its deduplication id.
F.requeue = function(q, id, now, retries)
  local h = G.job_of(q, id)
  if G.requeue_failed(q, id, now, h) then return false end
  redis.call('ZREM', q.failed, id)
  G.results.left(q, 1)
  if retries then G.set(q, id, 'autoRetries', G.int(retries)) end
  return true
end

G.export('failures_change', { 'allow-oom' }, G.for_operators(function(q, r)
  local now, ids = G.now(q), {}
  r.high = r.high or now
  local keeps_cancelled = r.action == 'retry' and #r.reasons == 0
  local cursor = each(q, r, function(id, job)
    if not (keeps_cancelled and job.reason == F.CANCELLED) then ids[#ids + 1] = id end
  end)
  local changed = #ids
  if r.action == 'purge' then
    F.purge(q, ids, now)
  elseif r.action == 'retry' then
    for _, id in ipairs(ids) do
      if not F.requeue(q, id, now) then changed = changed - 1 end
    end
  else
    return redis.error_reply('ERR unknown action ' .. tostring(r.action))
  end
  if cursor == '' and r.total + changed > 0 then
    G.emit(q.events, r.action == 'purge' and 'cleaned' or 'retried', G.int(r.total + changed))
  end
  return { changed = changed, cursor = cursor, high = r.high }
end))
