-- Putting a new job where its options say: scheduled set, LIFO list or stream. Place first, hash second:
-- a place that cannot be written (a key of a foreign type) fails the call before the job exists.

-- Priority jobs that are ready at once are ordered by a clock of their queue that never stands still, so that
-- the rows of one bulk keep their order. It lags the real one, so such a job is always due (W65).
local PRIORITY_CLOCK_LAG = 1048576

local function priority_time(q, now)
  local last = tonumber(redis.call('HGET', q.meta, 'priorityClock') or '0') or 0
  local at = math.max(last + 1, now - PRIORITY_CLOCK_LAG)
  redis.call('HSET', q.meta, 'priorityClock', G.int(at))
  return at
end

-- A due time that became the earliest one: an idle worker has to set its timer anew.
local function wake_for_due(q, id)
  if redis.call('ZRANGE', q.scheduled, 0, 0)[1] == id then G.wake(q, 1) end
end

-- job: {id, name, priority, lifo, due (epoch ms or nil)} -> state, stream entry id or ''
G.place = function(q, now, job)
  local id, priority = job.id, job.priority
  if job.due then
    redis.call('ZADD', q.scheduled, G.int(priority * G.BAND + job.due), id)
    wake_for_due(q, id)
    return 'delayed', ''
  end
  if priority > 0 then
    redis.call('ZADD', q.scheduled, G.int(priority * G.BAND + priority_time(q, now)), id)
    G.wake(q, 1)
    return 'prioritized', ''
  end
  if job.lifo then
    redis.call('RPUSH', q.lifo, id)
    G.wake(q, 1)
    return 'waiting', ''
  end
  return 'waiting', G.push_stream(q, id, job.name)
end

-- A digits-only custom id above the counter moves the counter there (data-model.md section 8).
G.advance_counter = function(q, id)
  if not string.find(id, '^%d+$') then return end
  local counter = tonumber(redis.call('GET', q.id) or '0') or 0
  if tonumber(id) > counter then redis.call('SET', q.id, id) end
end
