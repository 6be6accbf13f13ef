-- Put a new job into the scheduled set, the LIFO list or the stream, by its options. The place is written first and
-- the hash second: if the place cannot be written (a key of a foreign type), the call fails before the job exists.

-- Priority jobs that are ready immediately are ordered by a per-queue clock that advances with every job, so that the
-- rows of one bulk keep their order. This clock lags real time by at most this many milliseconds (2^20, 17 minutes)
-- and never passes it, so such a job is always due. Order within a millisecond is lost only if the number of such
-- jobs exceeds the number of milliseconds by more than this. A delayed job counts from its due time, that is, like a
-- job added up to 17 minutes later. The time is part of a score (docs/reference/data-model.md, "Scores in
-- P:scheduled"): it is never below 0.
G.PRIORITY_CLOCK_LAG_MS = 1048576

-- Note the time in `clockSeen` of P:meta, so that a step back of the clock is recognized (functions/_clock.lua): with
-- all that gets a time in a score, and in exchanges while there are such, but at most once a second.
local CLOCK_MS = 1000

G.note_clock = function(q, now)
  local seen = rawget(q, 'clock_seen')
  if seen and now - seen < CLOCK_MS then return end
  seen = seen or G.count_of(redis.call('HGET', q.meta, 'clockSeen'))
  if now - seen >= CLOCK_MS then
    redis.call('HSET', q.meta, 'clockSeen', G.int(now))
    seen = now
  end
  q.clock_seen = seen
end

local function priority_time(q, now)
  local adding = rawget(q, 'adding_many') -- writes the clock at its end
  local last = adding and adding.priority_clock or G.count_of(redis.call('HGET', q.meta, 'priorityClock'))
  local at = last + 1 < now and last + 1 or now
  if at < now - G.PRIORITY_CLOCK_LAG_MS then at = math.max(0, now - G.PRIORITY_CLOCK_LAG_MS) end
  if adding then adding.priority_clock = at else redis.call('HSET', q.meta, 'priorityClock', G.int(at)) end
  return at
end

-- Return the time of the first job of a priority, nil if it has none; and the first job from this priority on.
local function head_of(q, priority)
  local band, at, head = G.scheduled_from(q.scheduled, G.band_start(priority))
  return band == priority and at or nil, head
end

-- Return a time before that of every job of the priority, also of later ones: their times may lag behind the clock.
local function time_before(q, now, priority)
  local at, last = head_of(q, priority), priority_time(q, now)
  return at and math.min(at - 1, last) or last
end

-- If the new due time is the earliest of its priority, wake an idle worker so that it resets its timer. The lowest
-- score of the whole set does not show the due times of other priorities. One that this call has found is kept.
local function wake_for_due(q, id, priority, due)
  local heads = rawget(q, 'due_heads')
  if not heads then
    heads = {}
    q.due_heads = heads
  end
  if heads[priority] and due >= heads[priority] then return end
  local at, first = head_of(q, priority)
  if first == id then G.wake(q, 1) end
  heads[priority] = at or due
end

-- job: {id, name, priority, lifo, due (epoch ms or nil), rank (of features/ranks, or nil), fair (its fair key or nil),
-- first (true = put it before the others)}; what the rows of an add share is one (functions/_adding.lua). Return the state
-- and the stream entry id or ''.
G.place = function(q, now, job)
  local id, priority, rank = job.id, G.priority_of(job.priority), job.rank and G.ranks.of(job.rank)
  if job.due or priority > 0 then G.note_clock(q, now) end
  if job.fair then return G.fair.place(q, id, job.fair, priority, job.due, job.first) end
  if rank then
    return job.due and G.ranks.delay(q, id, job.due) or G.ranks.place(q, id, rank, job.lifo or job.first), ''
  end
  if job.due then
    redis.call('ZADD', q.scheduled, priority * G.BAND + G.clamped_time(job.due), id)
    wake_for_due(q, id, priority, job.due)
    return 'delayed', ''
  end
  if priority > 0 then
    local at = job.first and time_before(q, now, priority) or priority_time(q, now)
    redis.call('ZADD', q.scheduled, priority * G.BAND + at, id)
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

-- Put a job into the place that its record gives it, and write its state. Return the state.
--   h: fields of the record (G.job_of)   due, first: as for G.place   again: the job becomes ready later than at its add. The
--   time is recorded, unless a stream entry contains it (features/metrics/functions/gauges.lua).
G.put = function(q, id, now, h, due, again, first)
  local state, entry = G.place(q, now, {
    id = id, name = h.name, priority = h.priority, lifo = h.lifo == '1' and not h.groupKey, due = due, rank = h.rank,
    fair = h.fairKey, first = first,
  })
  redis.call('HSET', q.J .. id, 'state', state, 'eid', entry)
  if again and entry == '' and not due then redis.call('HSET', q.J .. id, 'readyAt', G.int(now)) end
  if state ~= h.state then G.note_state(q, id, state, now) end
  return state
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

-- ------------------------------------------------------------------ returning


G.void_attempt = function(q, id)
  G.bump(q.J .. id, 'fence')
  redis.call('HDEL', q.J .. id, 'processedOn', 'lastActive')
end

-- Return a job to the ready source it came from. Its attempt is void (a new fence) and not counted. Callers remove it
-- from its old place afterwards, so that nothing is lost if the new place cannot be written.

-- h: name, priority, lifo, fairKey, groupKey, orderingSeq, slot, state, suspectLimit. to_front: put it before
-- the other jobs of its source. Return the group of an ordered job: the job is now at its head, and the caller starts the
-- group's next jobs. Nil for a suspect (features/stalled_jobs/suspects.lua).
G.return_job = function(q, id, now, h, to_front)
  local g
  if G.suspects.belongs(q, h) then
    G.suspects.add(q, id, h)
  elseif h.groupKey then
    g = G.groups.return_to_head(q, id, h)
  else
    G.put(q, id, now, h, nil, false, to_front)
  end
  G.void_attempt(q, id)
  return g
end
