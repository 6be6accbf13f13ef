-- Putting a new job where its options say: scheduled set, LIFO list or stream. Place first, hash second:
-- a place that cannot be written (a key of a foreign type) fails the call before the job exists.

-- Priority jobs that are ready at once are ordered by a clock of their queue that never stands still, so that
-- the rows of one bulk keep their order. It lags the real one by at most this many milliseconds (2^20, 17 minutes) and
-- never passes it, so such a job is always due (W65). Order within a millisecond is lost only where that many more such
-- jobs than milliseconds have come; a job that was delayed counts from its due time, that is as if it had come up to 17
-- minutes later. The time is part of a score of its band (data-model.md section 7): it is never below 0.
G.PRIORITY_CLOCK_LAG_MS = 1048576

local function priority_time(q, now)
  local last = G.count_of(redis.call('HGET', q.meta, 'priorityClock'))
  local at = math.max(0, math.min(now, math.max(last + 1, now - G.PRIORITY_CLOCK_LAG_MS)))
  redis.call('HSET', q.meta, 'priorityClock', G.int(at))
  return at
end

-- A due time that became the earliest of its band: an idle worker has to set its timer anew. (The lowest score
-- of all says nothing of the other bands, W59.)
local function wake_for_due(q, id, priority)
  local first = redis.call('ZRANGEBYSCORE', q.scheduled, G.band_start(priority), '+inf', 'LIMIT', 0, 1)[1]
  if first == id then G.wake(q, 1) end
end

-- job: {id, name, priority, lifo, due (epoch ms or nil)} -> state, stream entry id or ''
G.place = function(q, now, job)
  local id, priority = job.id, G.priority_of(job.priority)
  if job.due then
    redis.call('ZADD', q.scheduled, G.scheduled_score(priority, job.due), id)
    wake_for_due(q, id, priority)
    return 'delayed', ''
  end
  if priority > 0 then
    redis.call('ZADD', q.scheduled, G.scheduled_score(priority, priority_time(q, now)), id)
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
  local counter = G.count_of(redis.call('GET', q.id))
  if tonumber(id) > counter then redis.call('SET', q.id, id) end
end

-- The counter of ids after an increase by `by`. One that holds junk begins anew at the present time, which no id that it
-- has issued comes near.
G.count_ids = function(q, by)
  local last = redis.pcall('INCRBY', q.id, G.int(by))
  if not G.must_restart(last) and last >= by then return last end
  last = G.now(q) + by
  redis.call('SET', q.id, G.int(last))
  return last
end
