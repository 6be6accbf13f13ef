-- glidemq_fail: fail an attempt, and retry or fail the job.
-- KEYS 1 stream, 2 failed, 3 scheduled, 4 events, 5 job, 6 metrics:failed
--   ARGV 1 id, 2 entry id ('' = from a list), 3 reason, 4 now, 5 max attempts (0 = no retry), 6 backoff ms, 7 group, 8
--   retention mode, 9 count, 10 age s, 11 broadcast 0/1   -> 'retrying' | 'failed'
-- A call that is not for the job's current attempt changes nothing. It returns 'failed' if the job has failed or is
-- gone, else 'retrying': the caller has no failure to handle. Bound: constant, plus the jobs deleted by retention (at
-- most 1,000).
local W = G.W

local SUBSCRIPTION_TTL = 86400

local function count_attempt(q, c)
  if not c.broadcast then return G.bump(q.J .. c.id, 'attemptsMade') end
  local key = q.J .. c.id .. ':sub:' .. c.group
  local attempts = G.bump(key, 'a')
  redis.call('EXPIRE', key, SUBSCRIPTION_TTL)
  return attempts
end

local function retry(q, h, c, attempts)
  local key, now_text = q.J .. c.id, G.text(c.now)
  if string.find(h.opts or '', '"fallbacks"', 1, true) then G.bump(key, 'fallbackIndex') end
  local member = c.broadcast and c.id .. '||' .. c.group or c.id
  redis.call('ZADD', q.scheduled, G.scheduled_score(h.priority, c.now + c.backoff), member)
  redis.call('HSET', key, 'state', 'delayed', 'failedReason', c.reason, 'processedOn', now_text)
  -- Stalls are counted per attempt, not over all attempts.
  redis.call('HDEL', key, 'stalledCount', 'suspectLimit')
  W.free_slot_unless_ordered(q, c.id, h, c.now)
  G.emit(q.events, 'retrying', c.id, 'failedReason', c.reason, 'attemptsMade', attempts, 'delay', G.text(c.backoff))
  W.wake(q)
  return 'retrying'
end

local function fail(q, h, c)
  local now_text = G.text(c.now)
  redis.call('ZADD', q.failed, now_text, c.id)
  G.set(q, c.id, 'state', 'failed', 'failedReason', c.reason, 'finishedOn', now_text,
    'processedOn', now_text)
  G.flows.child_ended(q, c.id, G.flows.FAILED, c.reason, c.now)
  W.leave_group(q, c.id, h, c.now)
  G.emit(q.events, 'failed', c.id, 'failedReason', c.reason)
  G.metric_of_job(q.metrics_failed, c.now, h.processedOn)
  if not c.broadcast then W.retain(q, q.failed, c.id, c.retention, c.now) end
  return 'failed'
end

local function rejected(q, h, c)
  W.uncount_rejected(q, h, c)
  return (not h.state or h.state == 'failed') and 'failed' or 'retrying'
end

G.export('fail', { 'allow-oom' }, function(keys, args)
  local q = W.job_queue(keys[5], args[1])
  local c = {
    id = args[1], entry = args[2], reason = args[3], now = G.num(args[4]), limit = G.num(args[5]),
    backoff = G.duration(args[6]), group = args[7], retention = W.retention(args[8], args[9], args[10]),
    broadcast = args[11] == '1',
  }
  local acked = W.ack(q, c.group, c.entry, c.broadcast)
  local h = G.job_of(q, c.id)
  if not h.state or (not c.broadcast and not W.is_current(h, c.entry, acked)) then return rejected(q, h, c) end
  local attempts = count_attempt(q, c)
  if c.entry == '' then G.untrack_list_job(q, c.id) end
  if c.limit > 0 and attempts < c.limit then return retry(q, h, c, attempts) end
  return fail(q, h, c)
end)
