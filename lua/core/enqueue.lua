-- Put a new job into the scheduled set, the LIFO list or the stream, by its options. The place is written first and
-- the hash second: if the place cannot be written (a key of a foreign type), the call fails before the job exists.

-- Priority jobs that are ready immediately are ordered by a per-queue clock that advances with every job, so that the
-- rows of one bulk keep their order. This clock lags real time by at most this many milliseconds (2^20, 17 minutes)
-- and never passes it, so such a job is always due. Order within a millisecond is lost only if the number of such
-- jobs exceeds the number of milliseconds by more than this. A delayed job counts from its due time, that is, like a
-- job added up to 17 minutes later. The time is part of a score (docs/reference/data-model.md, "Scores in
-- P:scheduled"): it is never below 0.
G.PRIORITY_CLOCK_LAG_MS = 1048576

local function priority_time(q, now)
  local last = G.count_of(redis.call('HGET', q.meta, 'priorityClock'))
  local at = math.max(0, math.min(now, math.max(last + 1, now - G.PRIORITY_CLOCK_LAG_MS)))
  redis.call('HSET', q.meta, 'priorityClock', G.int(at))
  return at
end

-- Return a time before that of every job of the priority, also of later ones: their times may lag behind the clock.
local function time_before(q, now, priority)
  local head = redis.call('ZRANGEBYSCORE', q.scheduled, G.band_start(priority), '+inf', 'LIMIT', 0, 1, 'WITHSCORES')
  local band, at = G.band_of(head[G.rows.scored.score])
  local last = priority_time(q, now)
  return band == priority and math.min(at - 1, last) or last
end

-- If the new due time is the earliest of its priority, wake an idle worker so that it resets its timer. The lowest
-- score of the whole set does not show the due times of other priorities.
local function wake_for_due(q, id, priority)
  local first = G.first(redis.call('ZRANGEBYSCORE', q.scheduled, G.band_start(priority), '+inf', 'LIMIT', 0, 1))
  if first == id then G.wake(q, 1) end
end

-- job: {id, name, priority, lifo, due (epoch ms or nil), rank (of features/ranks, or nil), fair (its fair key or nil),
-- first (true = put it before the others)}. Return the state and the stream entry id or ''.
G.place = function(q, now, job)
  local id, priority, rank = job.id, G.priority_of(job.priority), job.rank and G.ranks.of(job.rank)
  if job.fair then return G.fair.place(q, id, job.fair, priority, job.due, job.first) end
  if rank then
    return job.due and G.ranks.delay(q, id, job.due) or G.ranks.place(q, id, rank, job.lifo or job.first), ''
  end
  if job.due then
    redis.call('ZADD', q.scheduled, G.scheduled_score(priority, job.due), id)
    wake_for_due(q, id, priority)
    return 'delayed', ''
  end
  if priority > 0 then
    local at = job.first and time_before(q, now, priority) or priority_time(q, now)
    redis.call('ZADD', q.scheduled, G.scheduled_score(priority, at), id)
    G.wake(q, 1)
    return 'prioritized', ''
  end
  if job.lifo or job.first then -- the list of LIFO jobs is before the stream
    redis.call('RPUSH', q.lifo, id)
    G.wake(q, 1)
    return 'waiting', ''
  end
  return 'waiting', G.push_stream(q, id, job.name)
end

-- Place a job that becomes ready later than at its add, and record the time, unless a stream entry contains it
-- (features/metrics/waiting_age.lua).
G.place_again = function(q, now, job)
  local state, entry = G.place(q, now, job)
  if entry == '' and not job.due then redis.call('HSET', q.J .. job.id, 'readyAt', G.int(now)) end
  return state, entry
end

-- Move the id counter to a custom id of digits that is above it. The client rejects ids that INCR could not continue
-- from (leading zeros, too long); here they have no effect.
G.advance_counter = function(q, id)
  if #id > 14 or not string.find(id, '^[1-9]%d*$') then return end
  local counter = G.count_of(redis.call('GET', q.id))
  if tonumber(id) > counter then redis.call('SET', q.id, id) end
end

-- Increase the id counter by `by` and return it. A counter with an unusable value restarts at the present time, which
-- is far from every id it has issued.
G.count_ids = function(q, by)
  local last = G.pcall('INCRBY', q.id, G.int(by))
  if not G.must_restart(last) and last >= by then return last end
  last = G.now(q) + by
  redis.call('SET', q.id, G.int(last))
  return last
end
