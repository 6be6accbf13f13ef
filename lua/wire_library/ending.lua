-- Ends that no handler decides: expiry, stalling. And what is kept of ended jobs.
local W = G.W

-- EXPIRE: the slot that an ordered job kept while it paused is given back too (W92).
W.expire = function(q, id, h, now)
  if W.TERMINAL[h.state] then return end
  G.end_failed(q, id, now, 'expired', 'expired', h.processedOn)
  W.leave_group(q, id, h, now)
end

-- CHECKEXP
W.expired_now = function(q, id, h, now)
  if not W.is_expired(h, now) then return false end
  W.expire(q, id, h, now)
  return true
end

-- Revoked before it could run. No metric: nothing has failed.
W.end_revoked = function(q, id, h, now)
  redis.call('ZADD', q.failed, W.text(now), id)
  redis.call('HSET', q.J .. id, 'state', 'failed', 'failedReason', 'revoked', 'finishedOn', W.text(now))
  G.flows.child_ended(q, id, G.flows.FAILED, 'revoked', now)
  W.leave_group(q, id, h, now)
end

-- STALL: true if the job has failed for it.
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

-- A stalled job becomes as good as new. It keeps its slot; where only the rule of the protocol says that it has
-- one, that is written down before the signs of it go.
W.redispatch = function(q, id, h)
  redis.call('HDEL', q.J .. id, 'processedOn', 'lastActive')
  if h.groupKey and not h.slot and h.state == 'active' then redis.call('HSET', q.J .. id, 'slot', '1') end
end

-- LOCKMS: the job's own lock duration, or 0.
W.lock_ms = function(opts)
  if not opts or not string.find(opts, '"lockDuration"', 1, true) then return 0 end
  local parsed = W.json(opts)
  local own = parsed and tonumber(parsed.lockDuration) or 0
  return own >= 1000 and own <= 86400000 and own or 0
end

-- How long a job may go without a heartbeat: its own lock, the worker's, the idle time asked for.
W.stall_threshold = function(h, worker_lock, min_idle)
  local own = W.lock_ms(h.opts)
  if own > 0 then return own end
  return worker_lock > 0 and worker_lock or min_idle
end

-- RETAIN, with all keys of the jobs that go (W69).
W.retain = function(q, zset, id, rule, now)
  if rule.mode == 'true' then
    redis.call('ZREM', zset, id)
    G.purge(q, { id })
  elseif rule.mode == 'count' and rule.count > 0 then
    G.retain(q, zset, { rule.count, 0 }, now)
  elseif rule.mode == 'age_count' then
    G.retain(q, zset, { rule.count, rule.age }, now)
  end
end

W.retention = function(mode, count, age)
  return { mode = mode or '0', count = math.max(0, math.floor(W.num(count))), age = math.max(0, W.num(age)) }
end
