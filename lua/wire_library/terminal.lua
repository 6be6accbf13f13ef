-- End jobs without a handler's result (expired, stalled, revoked), and apply the retention of ended jobs.
local W = G.W

-- Expire the job if its time has passed; the slot that an ordered job kept while it was not active is freed too. Return
-- whether its time has passed.
W.expired_now = function(q, id, h, now)
  if not G.is_expired(q, h.expireAt, h.timestamp, now) then return false end
  if G.TERMINAL[h.state] then return true end
  G.end_failed(q, id, now, 'expired', 'expired', h.processedOn)
  W.leave_group(q, id, h, now)
  return true
end

-- Fail a job that was revoked before it could run. No metric is written, since no attempt has failed.
W.end_revoked = function(q, id, h, now)
  redis.call('ZADD', q.failed, G.text(now), id)
  G.set(q, id, 'state', 'failed', 'failedReason', 'revoked', 'finishedOn', G.text(now))
  G.flows.child_ended(q, id, G.flows.FAILED, 'revoked', now)
  W.leave_group(q, id, h, now)
end

-- Count a stall. Return true if the job has failed because of it.
W.stall = function(q, id, h, max_stalled, now)
  local stalled = G.bump(q.J .. id, 'stalledCount')
  if stalled > max_stalled then
    G.end_failed(q, id, now, 'job stalled more than maxStalledCount', 'failed', h.processedOn)
    W.leave_group(q, id, h, now)
    return true
  end
  G.emit(q.events, 'stalled', id)
  return false
end

-- Reset a stalled job. It keeps its slot: if the job has one only by the protocol's rule, the field is written before
-- the fields behind the rule are deleted.
W.reset_stalled = function(q, id, h)
  redis.call('HDEL', q.J .. id, 'processedOn', 'lastActive')
  if h.groupKey and not h.slot and h.state == 'active' then G.set(q, id, 'slot', '1') end
end

-- Return the job's own lock duration in ms, or 0.
W.lock_ms = function(opts)
  if not opts or not string.find(opts, '"lockDuration"', 1, true) then return 0 end
  local own = tonumber(G.json(opts).lockDuration) or 0
  return own >= 1000 and own <= 86400000 and own or 0
end

-- Return how long a job may go without a heartbeat: its own lock duration, the worker's, or the requested idle time.
W.stall_threshold = function(h, worker_lock, min_idle)
  local own = W.lock_ms(h.opts)
  if own > 0 then return own end
  return worker_lock > 0 and worker_lock or min_idle
end

-- Apply the retention, and delete all keys of the deleted jobs.
W.retain = function(q, zset, id, rule, now)
  if rule.mode == 'true' then
    redis.call('ZREM', zset, id)
    G.results.before_delete(q, { id })
    G.purge(q, { id })
  elseif rule.mode == 'count' and rule.count > 0 then
    G.retain(q, zset, { rule.count, 0 }, now)
  elseif rule.mode == 'age_count' then
    G.retain(q, zset, { rule.count, rule.age }, now)
  end
end

W.retention = function(mode, count, age)
  return { mode = mode or '0', count = math.max(0, math.floor(G.num(count))), age = math.max(0, G.num(age)) }
end
