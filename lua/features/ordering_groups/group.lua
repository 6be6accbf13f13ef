-- Read and write the record of an ordering group: its fields, its sequence, its token bucket
-- (docs/reference/data-model.md, "Fields of P:group:<key>"). A table `g` mirrors the hash; code that writes the hash
-- also updates the mirror. Admission is in group_admit.lua, the start of parked jobs in group_promote.lua.
local M = G.groups

-- Fields of groups with a limit.
local LIMITED = { 'rateDuration', 'rateWindowStart', 'rateCount', 'tbRefillRate', 'tbLastRefill', 'tbRefillRemainder',
  'tbTokens' }
local SKIPS_MAX = 1000
local PLACES_MAX = 9007199254740991 -- 2^53 - 1: the highest score of a parked job

-- A bucket holds at least the overdraft of one job (-capacity) and at most its capacity, and was not filled after now.
local function read_limits(g)
  local values = redis.call('HMGET', g.key, unpack(LIMITED))
  for i = 1, #LIMITED do g[LIMITED[i]] = G.num(values[i]) end
  g.rateDuration = G.duration(g.rateDuration)
  if not values[#LIMITED] then g.tbTokens = g.tbCapacity end
  g.tbTokens = math.max(-g.tbCapacity, math.min(g.tbTokens, g.tbCapacity))
end

M.group = function(q, name)
  local known = q.groups[name]
  if known then return known end
  local num, count, key = G.num, G.count_of, q.P .. 'group:' .. name
  local active, width, next_seq, rate, capacity = unpack(redis.call('HMGET', key, 'active', 'maxConcurrency', 'nextSeq',
    'rateMax', 'tbCapacity'))
  local g = {
    q = q, name = name, key = key, queue = q.P .. 'groupq:' .. name, dirty = false, moved = false,
    active = count(active), maxConcurrency = count(width), nextSeq = count(next_seq), rateMax = rate and num(rate) or 0,
    tbCapacity = capacity and num(capacity) or 0,
  }
  if g.rateMax > 0 or g.tbCapacity > 0 then read_limits(g) end
  q.groups[name] = g
  local freed = q.freed[name]
  if freed then
    q.freed[name] = nil
    if g.active > 0 then M.set_counters(g, math.max(0, g.active - freed), g.nextSeq) end
  end
  return g
end

local function write_others(g)
  local set = {}
  for field in pairs(g.dirty) do
    set[#set + 1], set[#set + 2] = field, G.text(g[field])
  end
  g.dirty = false
  redis.call('HSET', g.key, unpack(set))
end

-- Write the record. A call that changes groups many times writes each once, by M.flush.
local function write(g)
  if g.moved then
    g.moved = false
    if g.nextSeq > 0 then
      redis.call('HSET', g.key, 'active', g.active, 'nextSeq', g.nextSeq)
    else
      redis.call('HSET', g.key, 'active', g.active)
    end
  end
  if g.dirty then write_others(g) end
end

-- Set the active slots and the next sequence: every job of a group changes them.
M.set_counters = function(g, active, next_seq)
  g.active, g.nextSeq, g.moved = active, next_seq, true
  if not g.q.defer then write(g) end
end

-- Set other fields of the record.
M.set_fields = function(g, fields)
  g.dirty = g.dirty or {}
  for field, value in pairs(fields) do
    g[field] = value
    g.dirty[field] = true
  end
  if not g.q.defer then write(g) end
end

-- Free a slot without reading the group's record. M.flush decrements the counter, unless the record is read before.
M.free_unread = function(q, name)
  local g = q.groups[name]
  if g or not q.defer then
    g = g or M.group(q, name)
    if g.active > 0 then M.set_counters(g, g.active - 1, g.nextSeq) end
  else
    q.freed[name] = (q.freed[name] or 0) + 1
  end
end

-- The counter never goes below zero, and no record is created: an absent field means 0 too.
local function count_down(key, freed)
  local left = G.pcall('HINCRBY', key, 'active', -freed)
  if type(left) ~= 'number' or left < 0 then G.pcall('HDEL', key, 'active') end
end

M.flush = function(q)
  if next(q.freed) then
    for name, freed in pairs(q.freed) do count_down(q.P .. 'group:' .. name, freed) end
    q.freed = {}
  end
  for _, g in pairs(q.groups) do write(g) end
end

-- Discard the mirror after the hash was changed directly; the next use reads it again.
M.uncache = function(q, name) q.groups[name] = nil end

-- Skip sequences that no job has any more.
M.skip_marked = function(g)
  if g.nextSeq <= 0 then return end
  local n, steps = g.nextSeq, 0
  for _ = 1, SKIPS_MAX do
    if redis.call('HDEL', g.key, 'skip:' .. G.int(n)) == 0 then break end
    n, steps = n + 1, steps + 1
  end
  if n > g.nextSeq then M.set_counters(g, g.active, n) end
  -- More may follow: the next call that handles expired rate limits continues.
  if steps == SKIPS_MAX then M.limit_until(g.q, g, 1, 'NX') end
end

-- Mark a sequence whose job will never be activated, so that it does not block the following ones.
M.mark_skip = function(g, seq)
  if g.nextSeq > 0 and seq >= g.nextSeq then redis.call('HSET', g.key, 'skip:' .. G.int(seq), '1') end
end

-- Return the sequence expected after `n`, past the skip marks, without deleting them.
M.next_unmarked = function(g, n)
  n = n + 1
  for _ = 1, SKIPS_MAX do
    if redis.call('HEXISTS', g.key, 'skip:' .. G.int(n)) == 0 then return n end
    n = n + 1
  end
  return n
end

-- Return the tokens at `now`, in millitokens; the remainder keeps the fraction.
M.refill = function(g, now)
  local capacity, rate = g.tbCapacity, g.tbRefillRate
  if capacity <= 0 then return 0 end
  if g.tbTokens >= capacity then
    g.tbTokens = capacity
    return capacity
  end
  if rate <= 0 then return g.tbTokens end
  local fills_in = math.ceil(capacity * 1000 / rate)
  local elapsed = now - g.tbLastRefill
  if elapsed < -fills_in and not G.past_time(g.tbLastRefill, now) then elapsed = fills_in end -- unusable time
  if elapsed < 0 then M.set_fields(g, { tbLastRefill = now }) end -- the clock was set back
  if elapsed <= 0 then return g.tbTokens end
  elapsed = math.min(elapsed, fills_in)
  local raw = elapsed * rate + g.tbRefillRemainder
  M.set_fields(g, {
    tbTokens = math.min(capacity, g.tbTokens + math.floor(raw / 1000)), tbLastRefill = now,
    tbRefillRemainder = raw % 1000,
  })
  return g.tbTokens
end

-- Return the cost of a job in millitokens; one token by default.
M.cost = function(h)
  local cost = G.num(h.cost)
  return cost > 0 and cost or 1000
end

-- Return until when the group is limited, if that is later than `now`.
M.limited_until = function(q, g, now)
  if q.any_limited == 0 then q.any_limited = redis.call('EXISTS', q.ratelimited) == 1 end
  if not q.any_limited then return nil end
  local at = G.latest_limit(q, g.name)
  return at > now and at or nil
end

-- Return the time until which the group is limited, 0 if it is not or the time is unusable.
G.latest_limit = function(q, name)
  local at = G.num(redis.call('ZSCORE', q.ratelimited, name))
  return at <= G.TIME_MAX and at or 0
end

-- Limit the group until `at`. condition: 'GT' keeps a later time.
M.limit_until = function(q, g, at, condition)
  at = G.clamped_time(at)
  if condition then
    redis.call('ZADD', q.ratelimited, condition, G.score(at), g.name)
  else
    redis.call('ZADD', q.ratelimited, G.score(at), g.name)
  end
  q.any_limited = true
end

-- Parked jobs are ordered by their sequence.
local function score_of(id, h)
  local seq = G.count_of(h.orderingSeq)
  if seq > 0 then return seq end
  return G.count_of(id, G.clamped_time(h.timestamp))
end

-- A job that keeps its slot is placed before all others: it needs no free slot, and must not wait behind a job that
-- does.
local function place_of(g, id, h)
  local score = score_of(id, h)
  if h.slot ~= '1' then return score end
  local _, head = G.member_at(g.queue, 0)
  return head and G.num(head) < score and G.num(head) - 1 or score
end

-- Return the highest score of a parked job; nil if none is parked.
M.last_place = function(g)
  local _, last = G.member_at(g.queue, -1)
  return last and G.count_of(last, PLACES_MAX - 1)
end

M.park = function(q, g, id, h, resume_at)
  redis.call('ZADD', g.queue, G.score(place_of(g, id, h)), id)
  G.set_state(q, id, 'group-waiting', '')
  if resume_at then M.limit_until(q, g, resume_at, 'GT') end
end
