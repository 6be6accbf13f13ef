-- Putting a new job where its options say: scheduled set, LIFO list or stream. Place first, hash second:
-- a place that cannot be written (a key of a foreign type) fails the call before the job exists.

-- Priority jobs that are ready at once are ordered by a clock of their queue that never stands still, so that
-- the rows of one bulk keep their order. It lags the real one and never passes it, so such a job is always due (W65).
-- Order within a millisecond is lost only where 65,536 more such jobs than milliseconds have come; a job that was
-- delayed counts from its due time, that is as if it had come up to a minute later.
local PRIORITY_CLOCK_LAG = 65536

local function priority_time(q, now)
  local last = tonumber(redis.call('HGET', q.meta, 'priorityClock') or '0') or 0
  local at = math.min(now, math.max(last + 1, now - PRIORITY_CLOCK_LAG))
  redis.call('HSET', q.meta, 'priorityClock', G.int(at))
  return at
end

-- A due time that became the earliest of its band: an idle worker has to set its timer anew. (The lowest score
-- of all says nothing of the other bands, W59.)
local function wake_for_due(q, id, priority)
  local first = redis.call('ZRANGEBYSCORE', q.scheduled, G.int(priority * G.BAND), '+inf', 'LIMIT', 0, 1)[1]
  if first == id then G.wake(q, 1) end
end

-- job: {id, name, priority, lifo, due (epoch ms or nil)} -> state, stream entry id or ''
G.place = function(q, now, job)
  local id, priority = job.id, job.priority
  if job.due then
    redis.call('ZADD', q.scheduled, G.int(priority * G.BAND + job.due), id)
    wake_for_due(q, id, priority)
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

-- A digits-only custom id above the counter moves the counter there (data-model.md section 8). Ids that INCR
-- could not go on from (leading zeros, too long) are the client's to refuse (W63); here they move nothing.
G.advance_counter = function(q, id)
  if #id > 14 or not string.find(id, '^[1-9]%d*$') then return end
  local counter = tonumber(redis.call('GET', q.id) or '0') or 0
  if tonumber(id) > counter then redis.call('SET', q.id, id) end
end
