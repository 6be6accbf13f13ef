-- limit_queue: set the limits of the whole queue.   KEYS 1 meta   ARGV 1 packed {concurrency, rate, ttl}   -> 1
--   concurrency: active jobs, 0 = no limit, false = unchanged; rate: {max, duration ms}, 0 = none, false = unchanged
--   ttl: ms until the limits that applied before apply again, 0 = never
-- queue_limits: KEYS 1 meta -> packed {concurrency, rate max, rate ms, concurrency ttl, rate ttl, jobs fetched in the
-- current window, ms until the next one}; 0 = no limit, ttl -1 = none
-- limit_group: set the limits of one group.   KEYS 1 meta   ARGV 1 packed {key, concurrency, rate, bucket}   -> 1
--   each false = unchanged, 0 = none; rate: {max, duration ms}; bucket: {capacity mtok, refill mtok/s}
-- rate_limit_group: rate limit a group for a while.   KEYS 1 meta   ARGV 1 packed {key, ms, replace 0|1}
--   -> when the limit ends, epoch ms
-- group_info: KEYS 1 meta   ARGV 1 key   -> packed {active, parked, next seq, concurrency, rate max, rate ms, capacity,
-- refill, limited until or 0}, or packed false if there is no such group
-- Bound: constant, plus the parked jobs started by a higher limit (at most 1,000 per call; later calls start the
-- others).

local RATE = G.rows.rate
local BUCKET = G.rows.bucket
local M = G.groups
local T = G.limit_ttl
local MARKERS = 32

-- Return when a limit ends that is set now, 0 = never.
local function end_of(now, ttl) return ttl > 0 and now + ttl or 0 end

G.export('limit_queue', { 'allow-oom' }, function(q, r)
  local concurrency, rate, now = r.concurrency, r.rate, G.now(q)
  local temporary = redis.call('HGET', q.meta, 'temporaryLimits')
  if r.ttl > 0 then G.note_clock(q, now) end
  local t = T.read(temporary) or { till = 0, concurrency = 0, rate_till = 0, max = 0, duration = 0 }
  T.expire(q, t, now)
  local before, max_before, ms_before = unpack(redis.call('HMGET', q.meta, 'globalConcurrency', 'rateLimitMax',
    'rateLimitDuration'))
  if concurrency then
    if t.till == 0 then t.concurrency = G.count_of(before) end
    t.till = end_of(now, r.ttl)
    T.write_concurrency(q, concurrency)
  end
  if rate then
    if t.rate_till == 0 then t.max, t.duration = G.count_of(max_before), G.count_of(ms_before) end
    t.rate_till = end_of(now, r.ttl)
    T.write_rate(q, rate == 0 and 0 or rate[RATE.max], rate == 0 and 0 or rate[RATE.duration])
  end
  if temporary or r.ttl > 0 then T.write(q, t) end
  G.wake(q, MARKERS) -- wake up workers that wait for a slot or a window
  return 1
end)

G.export('queue_limits', { 'no-writes' }, function(q)
  local now = G.now(q)
  local concurrency, max, duration, left, rate_left = T.effective(q, now)
  local used, wait = G.rate_use(q, max, duration, now)
  return {
    concurrency = concurrency, rate_max = max, rate_ms = duration, ttl = left, rate_ttl = rate_left,
    rate_used = used, rate_wait = wait,
  }
end)

-- Return the latest time until which window and bucket may have limited the group.
local function waits_until(g, now)
  local at = g.rateMax > 0 and g.rateWindowStart + g.rateDuration or 0
  if g.tbCapacity <= 0 then return at end
  return math.max(at, now + math.ceil((g.tbCapacity - g.tbTokens) * 1000 / math.max(g.tbRefillRate, 1)))
end

-- End a limit that came from window or bucket, unless it still applies; a limit set by rate_limit_group stays. A peer, and
-- rate_limit_group for a missing group, do not write `heldUntil`; but their limits last longer than `waited`.
local function recheck_limit(q, g, now, waited)
  if G.num(redis.call('HGET', g.key, 'heldUntil')) > now then return end
  if (M.limited_until(q, g, now) or 0) <= waited then redis.call('ZREM', q.ratelimited, g.name) end
end

G.export('limit_group', { 'allow-oom' }, function(q, r)
  local key, now = q.P .. 'group:' .. r.key, G.now(q)
  local known = redis.call('EXISTS', key) == 1
  local waited = waits_until(M.group(q, r.key), now)
  M.uncache(q, r.key)
  if r.concurrency then
    redis.call('HSET', key, 'maxConcurrency', G.int(r.concurrency))
  elseif not known then
    redis.call('HSET', key, 'maxConcurrency', '1')
  end
  -- `ordering` names all groups, also those without a job yet.
  redis.call('HSETNX', q.ordering, r.key, '0')
  -- keeps the record when the group is idle (features/ordering_groups/group_idle.lua)
  redis.call('HSET', key, 'limitsKept', '1')
  if r.rate then
    local rate = r.rate == 0 and { 0, 0 } or r.rate
    M.set_rate(key, rate[RATE.max], rate[RATE.duration])
  end
  if r.bucket then
    local bucket = r.bucket == 0 and { 0, 0 } or r.bucket
    M.set_bucket(key, bucket[BUCKET.capacity], bucket[BUCKET.refill], now)
  end
  local g = M.group(q, r.key)
  if known and (r.rate or r.bucket) then recheck_limit(q, g, now, waited) end
  M.promote_parked(q, g, now)
  -- For jobs beyond the bound of one call, and for a worker whose timer is set by the old limit.
  if redis.call('ZCARD', g.queue) > 0 then
    redis.call('ZADD', q.ratelimited, 'NX', G.int(now), g.name)
    G.wake(q, 1)
  end
  return 1
end)

G.export('rate_limit_group', { 'allow-oom' }, function(q, r)
  local at = G.rate_limit_group(q, r.key, G.now(q), r.ms, r.replace == 1, '')
  if r.replace == 1 then G.wake(q, 1) end -- it may be earlier than a worker's timer
  return at
end)

G.export('group_info', { 'no-writes' }, function(q, r)
  if redis.call('EXISTS', q.P .. 'group:' .. r.key) == 0 then return cmsgpack.pack(false) end
  local now = G.now(q)
  local g = M.group(q, r.key)
  return {
    active = g.active, parked = redis.call('ZCARD', g.queue), next_seq = math.max(1, g.nextSeq),
    concurrency = g.maxConcurrency, rate_max = g.rateMax, rate_ms = g.rateDuration or 0, capacity = g.tbCapacity,
    refill = g.tbRefillRate or 0, limited_until = M.limited_until(q, g, now) or 0,
  }
end)
