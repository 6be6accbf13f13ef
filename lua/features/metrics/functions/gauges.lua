-- gauges: return the metrics of a queue in one call.
-- KEYS 1 meta   -> packed {counts, oldest, workers, outbox, subscriptions, unread}
--   counts: as returned by `counts`     oldest: ms for which the oldest ready job has been ready, or the oldest message
--   that a subscription has not read
--   workers: consumers with a registration in the last minute, and those whose registration is older but still valid
--   outbox: number of outbox entries      subscriptions: number of subscriptions of a broadcast; 0 = a queue
--   unread: stream entries that the slowest of them has not read; -1 = more than 1,000, and the server does not count
--   them
-- Bound: the consumer groups of the stream (at most G.GROUPS_MAX), SELDOM_MAX workers, and 1,001 entries of a
-- broadcast; every other number is a length, or the first member of an ordered place.

local STREAM_GROUP = G.rows.stream_group
local STREAM_ENTRY = G.rows.stream_entry
local SCORED = G.rows.scored
local RECENT = 60000
local SELDOM_MAX = 100

local function older(age, now, since)
  since = since and G.num(since, now)
  return since and math.max(age, now - since) or age
end

local INTERNAL = { [G.GROUP] = true, [G.WAKE_GROUP] = true }
local COUNTED = 1000

local function is_before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  a_ms, a_seq, b_ms, b_seq = tonumber(a_ms), tonumber(a_seq), tonumber(b_ms), tonumber(b_seq)
  return a_ms < b_ms or (a_ms == b_ms and a_seq < b_seq)
end

-- Return the consumer group of the jobs, if there is one; and the slowest subscription of a broadcast and the number of
-- its subscriptions.
local function readers(q)
  local jobs, slowest, count = nil, nil, 0
  for _, group in ipairs((G.stream_groups(q))) do
    local name = group[STREAM_GROUP.name]
    if name == G.GROUP then
      jobs = group
    elseif not INTERNAL[name] then
      count = count + 1
      if not slowest or is_before(group[STREAM_GROUP.last_delivered], slowest[STREAM_GROUP.last_delivered]) then
        slowest = group
      end
    end
  end
  return jobs, slowest, count
end

-- Use the first entry that no worker has read yet; entry ids contain the time of the push. reader: the group whose
-- entries are read, nil = all are unread. A broadcast keeps its messages: use its slowest subscription.
local function stream_age(q, now, age, reader)
  local first_id = reader and '(' .. reader[STREAM_GROUP.last_delivered] or '-'
  local found = G.pcall('XRANGE', q.stream, first_id, '+', 'COUNT', 1)
  local first = not found.err and G.first(found)
  return first and older(age, now, string.match(first[STREAM_ENTRY.id], '^(%d+)-')) or age
end

-- Return the entries that a subscription has not read. The server reports no lag after entries were deleted.
local function unread_by(q, group)
  local lag = group[STREAM_GROUP.lag]
  if lag then return lag end
  local left = #redis.call('XRANGE', q.stream, '(' .. group[STREAM_GROUP.last_delivered], '+', 'COUNT', COUNTED + 1)
  return left <= COUNTED and left or -1
end

-- LIFO jobs are pushed and fetched on the right; priority jobs are pushed on the left and fetched on the right.
local function list_age(q, now, age, list, index)
  local id = G.pcall('LINDEX', list, index)
  if type(id) ~= 'string' then return age end
  local since = G.pcall('HGET', q.J .. id, 'timestamp')
  return type(since) == 'string' and older(age, now, since) or age
end

-- Use the first due job of the least urgent priority: it has most likely waited the longest.
local function scheduled_age(q, now, age)
  local beyond = G.pcall('ZCOUNT', q.scheduled, G.SCHEDULED_END, '+inf')
  if type(beyond) ~= 'number' then return age end
  local last = redis.call('ZRANGE', q.scheduled, -1 - beyond, -1 - beyond, 'WITHSCORES')
  local band = G.band_of(last[SCORED.score])
  if not band or band == 0 then return age end
  local low = G.band_start(band)
  local first = redis.call('ZRANGEBYSCORE', q.scheduled, low, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, 1)
  local _, due = G.band_of(first[SCORED.score])
  if due > now then return age end
  -- The score of a job that was ready when it was added has the time of a clock that lags (core/enqueue.lua).
  local delay, timestamp = unpack(G.pcall('HMGET', q.J .. first[SCORED.member], 'delay', 'timestamp'))
  return older(age, now, delay == '0' and timestamp or due)
end

-- A worker whose queue is idle registers seldom.
local function live_workers(q, now)
  local recent = redis.call('ZCOUNT', q.workers, G.int(now - RECENT), '+inf')
  local others = redis.call('ZRANGE', q.workers, -recent - SELDOM_MAX, -recent - 1)
  if #others == 0 then return recent end
  for i, name in ipairs(others) do others[i] = q.P .. 'w:' .. name end
  return recent + redis.call('EXISTS', unpack(others))
end

G.export('gauges', { 'no-writes' }, function(q)
  local now = G.now(q)
  local jobs, slowest, subscriptions = readers(q)
  local age = stream_age(q, now, 0, jobs or slowest)
  age = list_age(q, now, age, q.lifo, 0)
  age = list_age(q, now, age, q.priority, -1)
  age = scheduled_age(q, now, age)
  return G.replies.gauges({
    counts = G.counts(q), oldest = age, workers = live_workers(q, now), outbox = redis.call('XLEN', q.outbox),
    subscriptions = subscriptions, unread = slowest and unread_by(q, slowest) or 0,
  })
end)
