-- Write a new job: its id, its group, its hash and its place. Used by addJob, dedup and addFlow. A spec `s`: name,
-- data, opts, timestamp, delay, priority, max_attempts, id (custom), parent_id, parent_queue, deps_key, scheduler,
-- group, concurrency, rate_max, rate_duration, tb_capacity, tb_rate, cost, ttl, lifo, quiet.
-- Times in ms, costs and bucket in millitokens. An infinite delay becomes the longest that a score can hold, a priority
-- out of range the nearest in range.
local W = G.W

local TRIES_MAX = 1000
local COUNTER_MAX = 9007199254740991

-- Move the counter to a custom id of digits above it, in a form that INCR can read.
W.advance_counter = function(id_key, id)
  if not string.find(id, '^%d+$') then return end
  local n = tonumber(id)
  if n > COUNTER_MAX then return end
  if n > G.num(redis.call('GET', id_key)) then redis.call('SET', id_key, G.int(n)) end
end

-- Return the next free id, or nil after TRIES_MAX existing ones. taken: ids issued by this call.
W.next_id = function(q, taken)
  for _ = 1, TRIES_MAX do
    local id = G.int(G.count_ids(q, 1))
    if not (taken and taken[id]) and not G.exists(q, id) then return id end
  end
  return nil
end

-- Put the job into its place. Return its state and its stream entry ('' if it has none).
local function place(q, id, s)
  if s.delay > 0 then
    redis.call('ZADD', q.scheduled, G.scheduled_score(s.priority, s.timestamp + s.delay), id)
    return 'delayed', ''
  elseif s.priority > 0 then
    redis.call('ZADD', q.scheduled, G.scheduled_score(s.priority, 0), id)
    return 'prioritized', ''
  elseif s.lifo then
    redis.call('RPUSH', q.lifo, id)
    return 'waiting', ''
  end
  return 'waiting', G.push_stream(q, id, s.name)
end

-- Write the job's record. state 'waiting-children': a parent is in no place.
W.write_job = function(q, id, s, seq, state, entry)
  local fields = { 'id', id, 'name', s.name, 'data', s.data, 'opts', s.opts, 'timestamp', s.timestamp_text,
    'attemptsMade', '0', 'delay', s.delay_text, 'priority', G.text(s.priority), 'maxAttempts', G.text(s.max_attempts),
    'state', state }
  local function put(field, value)
    if value then G.append(fields, field, value) end
  end
  put('eid', G.given(entry))
  put('lifo', s.lifo and '1' or nil)
  if s.group then
    put('groupKey', s.group)
    put('orderingSeq', G.int(seq))
  end
  put('cost', s.cost > 0 and G.text(s.cost) or nil)
  put('expireAt', s.ttl > 0 and G.text(s.timestamp + s.ttl) or nil)
  put('parentId', s.parent_id)
  put('parentQueue', s.parent_id and s.parent_queue)
  put('schedulerName', s.scheduler)
  G.set(q, id, unpack(fields))
end

-- The place is written first, the record second: if the place cannot be written, the call fails before the job exists.
W.enqueue = function(q, id, s, seq)
  local state, entry = place(q, id, s)
  W.write_job(q, id, s, seq, state, entry)
  if s.parent_id and s.parent_queue and s.deps_key then redis.call('SADD', s.deps_key, q.P .. id) end
  if entry == '' then W.wake(q) end
  if not s.quiet then G.emit(q.events, 'added', id, 'name', s.name) end
end

-- Add one job, as addJob and dedup do -> id | 'duplicate' | 'ERR:...'. A rejected job leaves no trace.
W.add = function(q, s)
  if W.too_costly(s) then return 'ERR:COST_EXCEEDS_CAPACITY' end
  local id = s.id
  if id then
    if G.exists(q, id) then return 'duplicate' end
    W.advance_counter(q.id, id)
  else
    id = W.next_id(q)
    if not id then return 'ERR:ID_EXHAUSTED' end
  end
  local seq = 0
  if s.group then
    seq = W.next_seq(q, s.group)
    W.set_group(q, s)
  end
  W.enqueue(q, id, s, seq)
  return id
end

-- Build a spec from the arguments of addJob; dedup's are the same from its fourth on, at other positions.
W.spec = function(a)
  local timestamp, delay = G.clamped_time(a.timestamp), G.duration(a.delay)
  return {
    name = a.name or '', data = a.data or '', opts = a.opts or '', timestamp = timestamp,
    timestamp_text = G.text(timestamp), delay = delay, delay_text = G.text(delay),
    priority = G.priority_of(a.priority), max_attempts = G.num(a.max_attempts), id = G.given(a.id),
    parent_id = G.given(a.parent_id), parent_queue = G.given(a.parent_queue), deps_key = a.deps_key,
    scheduler = G.given(a.scheduler), group = G.given(a.group), concurrency = G.num(a.concurrency),
    rate_max = G.num(a.rate_max), rate_duration = G.num(a.rate_duration), tb_capacity = G.num(a.tb_capacity),
    tb_rate = G.num(a.tb_rate), cost = G.num(a.cost), ttl = G.num(a.ttl), lifo = a.lifo == '1', quiet = a.quiet == '1',
  }
end
