-- Promote due jobs without a priority (delayed and retrying ones) to the stream or the LIFO list. Due jobs with a
-- priority stay in the set: workers fetch them from there (features/priorities/fetch_priorities.lua).

local SCORED = G.rows.scored

-- States that a leftover member of the set must not change.
local NOT_WAITING = { active = true, completed = true, failed = true }

-- The new place is written first and the old one removed later: a job whose promotion failed half-way is found again.
local function promote_one(q, id, now, quiet)
  local h = G.pcall('HMGET', q.J .. id, 'state', 'name', 'lifo', 'expireAt', 'processedOn')
  local state, name, lifo, expires, processed_on = unpack(h)
  if not state or NOT_WAITING[state] then return end
  local expire_at = tonumber(expires or '')
  if expire_at and expire_at > 0 and now > expire_at then
    return G.end_job(q, id, now, 'expired', 'expired', processed_on)
  end
  if lifo == '1' then
    redis.call('RPUSH', q.lifo, id)
    redis.call('HSET', q.J .. id, 'state', 'waiting')
    if processed_on then redis.call('HSET', q.J .. id, 'readyAt', G.int(now)) end -- a retry
    G.wake(q, 1)
  else
    redis.call('HSET', q.J .. id, 'state', 'waiting', 'eid', G.push_stream(q, id, name or ''))
  end
  G.note_state(q, id, 'waiting', now)
  if not quiet then G.emit(q.events, 'promoted', id) end
end

-- A broadcast retry (`id||group`) returns to the stream for that group only.
local function promote_broadcast(q, id, group, quiet)
  local name = G.pcall('HGET', q.J .. id, 'name')
  if type(name) ~= 'string' then
    -- the message was trimmed while it waited for its next attempt
    G.emit(q.events, 'trimmed', id, 'subscription', group)
    return
  end
  redis.call('XADD', q.stream, '*', 'jobId', id, 'name', name, 'retryGroup', group)
  if rawget(q, 'channels') ~= false then G.ring(q) end
  redis.call('HSET', q.J .. id, 'state', 'waiting')
  if not quiet then G.emit(q.events, 'promoted', id) end
end

-- Promote at most `limit` members. Return ms until the next job without a priority is due (0 = now), or -1.
G.promote_due = function(q, now, limit, quiet)
  G.repair_scheduled(q, now)
  local due = redis.call('ZRANGEBYSCORE', q.scheduled, '-inf', G.int(now), 'LIMIT', 0, limit)
  for i = 1, #due do
    local id, group = string.match(due[i], '^(.-)||(.*)$')
    if id then
      promote_broadcast(q, id, group, quiet)
    else
      promote_one(q, due[i], now, quiet)
    end
    redis.call('ZREM', q.scheduled, due[i])
  end
  if #due == limit then return 0 end
  local head = redis.call('ZRANGE', q.scheduled, 0, 0, 'WITHSCORES')
  local score = tonumber(head[SCORED.score] or '')
  if not score or score >= G.BAND then return -1 end
  return math.max(0, score - now)
end
