-- gauges: return the metrics of a queue in one call.
-- KEYS 1 meta   -> packed {counts, oldest, workers, outbox, subscriptions, unread}
--   counts: as returned by `counts`     oldest: ms for which the oldest ready job has been ready (waiting_age.lua), or
--   the oldest message that a subscription has not read
--   workers: consumers with a registration in the last minute, and those whose registration is older but still valid
--   outbox: number of outbox entries      subscriptions: number of subscriptions of a broadcast; 0 = a queue
--   unread: stream entries that the slowest of them has not read; -1 = more than 1,000, and the server does not count
--   them
-- Bound: the consumer groups of the stream (at most G.GROUPS_MAX), SELDOM_MAX workers, 1,001 entries of a broadcast, and
-- the fair keys and ordering groups of waiting_age.lua; every other number is a length, or the first member of an ordered
-- place.

local STREAM_GROUP = G.rows.stream_group
local RECENT = 60000
local SELDOM_MAX = 100

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

-- Return the entries that a subscription has not read. The server reports no lag after entries were deleted.
local function unread_by(q, group)
  local lag = group[STREAM_GROUP.lag]
  if lag then return lag end
  local left = #redis.call('XRANGE', q.stream, '(' .. group[STREAM_GROUP.last_delivered], '+', 'COUNT', COUNTED + 1)
  return left <= COUNTED and left or -1
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
  local reader = jobs or slowest
  return G.replies.gauges({
    counts = G.counts(q), oldest = G.waiting_age(q, now, reader and reader[STREAM_GROUP.last_delivered]),
    workers = live_workers(q, now), outbox = redis.call('XLEN', q.outbox),
    subscriptions = subscriptions, unread = slowest and unread_by(q, slowest) or 0,
  })
end)
