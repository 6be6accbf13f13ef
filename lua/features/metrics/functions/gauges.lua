-- gauges: return the metrics of a queue in one call.
-- KEYS 1 meta   -> packed {counts, oldest, workers, outbox, subscriptions, unread}
--   counts: as returned by `counts`     oldest: ms for which the oldest ready job has been ready, or
--   the oldest message that a subscription has not read
--   workers: consumers with a registration in the last minute, and those whose registration is older but still valid
--   outbox: number of outbox entries      subscriptions: number of subscriptions of a broadcast; 0 = a queue
--   unread: stream entries that the slowest of them has not read; -1 = more than 1,000, and the server does not count
--   them
-- Bound: the consumer groups of the stream (at most G.GROUPS_MAX), SELDOM_MAX workers, 1,001 entries of a broadcast, and
-- PLACES fair keys and ordering groups; every other number is a length, or the first member of an ordered
-- place.

local STREAM_ENTRY = G.rows.stream_entry
local SCORED = G.rows.scored
local STREAM_GROUP = G.rows.stream_group
local RECENT = 60000
local SELDOM_MAX = 100

local S = G.subscriptions

-- Return the consumer group of the jobs, if there is one; and the slowest subscription of a broadcast and the number of
-- its subscriptions.
local function readers(q)
  local jobs, slowest, count = nil, nil, 0
  for _, group in ipairs((G.stream_groups(q))) do
    local name = group[STREAM_GROUP.name]
    if name == G.GROUP then
      jobs = group
    elseif not S.INTERNAL[name] then
      count = count + 1
      if not slowest or S.is_before(group[STREAM_GROUP.last_delivered], slowest[STREAM_GROUP.last_delivered]) then
        slowest = group
      end
    end
  end
  return jobs, slowest, count
end

-- A worker whose queue is idle registers seldom.
local function live_workers(q, now)
  local recent = redis.call('ZCOUNT', q.workers, G.int(now - RECENT), '+inf')
  local others = redis.call('ZRANGE', q.workers, -recent - SELDOM_MAX, -recent - 1)
  if #others == 0 then return recent end
  for i, name in ipairs(others) do others[i] = q.P .. 'w:' .. name end
  return recent + redis.call('EXISTS', unpack(others))
end

-- ------------------------------------------------------------------ waiting age
-- How long the oldest ready job of a queue has been ready: the oldest of the first jobs of each place where jobs wait.
-- Within a priority or rank the first job has waited the longest. Of several, that of the least urgent one has most
-- likely waited the longest.

local PLACES = 200 -- fair keys and ordering groups that are read; of more than these, as many are chosen at random
local FAIR_BAND = 2199023255552 -- 2^41, see features/fair_keys/fair.lua
local CLOCK_FROM = 1262304000000 -- the year 2010: times below are the orders of LIFO jobs (features/ranks/ranks.lua)

local function older(age, now, since)
  since = since and G.num(since, now)
  return since and math.max(age, now - since) or age
end

-- Use the first entry that no worker has read yet; entry ids contain the time of the push. reader: the group whose
-- entries are read, nil = all are unread. A broadcast keeps its messages: use its slowest subscription.
local function stream_age(q, now, age, reader)
  local first_id = reader and '(' .. reader or '-'
  local first = G.first(G.pcall('XRANGE', q.stream, first_id, '+', 'COUNT', 1))
  return first and older(age, now, string.match(first[STREAM_ENTRY.id], '^(%d+)-')) or age
end

-- Use a job that is ready: since its add and delay, the end of its last attempt, or the time when it was placed again.
local function job_age(q, now, age, id)
  if type(id) ~= 'string' then return age end
  local timestamp, delay, failed, ready = unpack(G.pcall('HMGET', q.J .. id, 'timestamp', 'delay', 'processedOn', 'readyAt'))
  if not timestamp then return age end
  return older(age, now, math.max(G.num(timestamp, now) + G.count_of(delay), G.count_of(failed), G.count_of(ready)))
end

local function first_of(key, start) return G.first(G.pcall('ZRANGE', key, start, start)) end

-- Use the first due job of the least urgent priority.
local function scheduled_age(q, now, age)
  local beyond = G.pcall('ZCOUNT', q.scheduled, G.SCHEDULED_END, '+inf')
  if type(beyond) ~= 'number' then return age end
  local _, last = G.member_at(q.scheduled, -1 - beyond)
  local band = G.band_of(last)
  if not band or band == 0 then return age end
  local _, due, first = G.scheduled_from(q.scheduled, G.band_start(band))
  if due > now then return age end
  if due < CLOCK_FROM then return job_age(q, now, age, first) end
  -- The score of a job that was ready when it was added has the time of a clock that lags (core/enqueue.lua).
  if redis.call('HGET', q.J .. first, 'delay') == '0' then return job_age(q, now, age, first) end
  return older(age, now, due)
end

-- Members of a rank are sorted by their order: LIFO jobs first, the newest before the others.
local function ranked_age(q, now, age, key)
  local last = G.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
  local rank = last[SCORED.score]
  if not rank then return age end
  local found = redis.call('ZRANGEBYSCORE', key, rank, rank, 'LIMIT', 0, 1)
  for _, member in ipairs({ G.first(found), last[SCORED.member], first_of(key, 0) }) do
    age = job_age(q, now, age, G.ranks.id_of(member))
  end
  return age
end

-- Return PLACES members of a set or fields of a hash at most.
local function some(count, all, random, key, ...)
  local size = G.size(count, key)
  if size == 0 then return {} end
  if size <= PLACES then return redis.call(all, key, ...) end
  return redis.call(random, key, PLACES)
end

-- Scores of all keys contain the number of the arrival in the queue.
local function fair_age(q, now, age)
  if not G.fair.used(q) then return age end
  local oldest, least = nil, math.huge
  local function look(found)
    local arrival = found[SCORED.score] and tonumber(found[SCORED.score]) % FAIR_BAND
    if arrival and arrival < least then oldest, least = found[SCORED.member], arrival end
    return arrival
  end
  for _, key in ipairs(some('ZCARD', 'ZRANGE', 'ZRANDMEMBER', q.fair_keys, 0, -1)) do
    local queue = G.fair.queue_of(q, key)
    local last = G.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')
    if look(last) then
      -- The first of the least urgent priority.
      local low = math.floor(tonumber(last[SCORED.score]) / FAIR_BAND) * FAIR_BAND
      look(redis.call('ZRANGEBYSCORE', queue, G.int(low), '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    end
  end
  return job_age(q, now, age, oldest)
end

local function parked_age(q, now, age)
  for _, group in ipairs(some('HLEN', 'HKEYS', 'HRANDFIELD', q.ordering)) do
    age = job_age(q, now, age, first_of(q.P .. 'groupq:' .. group, 0))
  end
  return age
end

-- Return ms, 0 = no job is ready. reader: the last entry of the stream that was delivered, nil = none was.
-- Bound: PLACES fair keys and as many groups.
local function waiting_age(q, now, reader)
  local age = stream_age(q, now, 0, reader)
  -- LIFO jobs are pushed and fetched on the right; priority jobs are pushed on the left and fetched on the right.
  age = job_age(q, now, age, G.pcall('LINDEX', q.lifo, 0))
  age = job_age(q, now, age, G.pcall('LINDEX', q.priority, -1))
  age = scheduled_age(q, now, age)
  age = ranked_age(q, now, age, q.ranked_above)
  age = ranked_age(q, now, age, q.ranked_below)
  age = fair_age(q, now, age)
  return parked_age(q, now, age)
end

G.export('gauges', { 'no-writes' }, function(q)
  local now = G.now(q)
  local jobs, slowest, subscriptions = readers(q)
  local reader = jobs or slowest
  return {
    counts = G.counts(q), oldest = waiting_age(q, now, reader and reader[STREAM_GROUP.last_delivered]),
    workers = live_workers(q, now), outbox = redis.call('XLEN', q.outbox),
    subscriptions = subscriptions, unread = slowest and S.lag(q, slowest) or 0,
  }
end)
