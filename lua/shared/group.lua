-- The record of an ordering group (data-model.md section 5): its fields, its sequence, its token bucket.
-- A table `g` mirrors the hash; a routine that writes the hash writes the mirror too.
G.groups = {}
local M = G.groups

-- What every group has to be asked for, and what only those with a limit have.
local FIELDS = { 'active', 'maxConcurrency', 'nextSeq', 'rateMax', 'tbCapacity' }
local LIMITED = { 'rateDuration', 'rateWindowStart', 'rateCount', 'tbRefillRate', 'tbLastRefill', 'tbRefillRemainder',
  'tbTokens' }
local SKIPS_MAX = 1000

local function read(g, fields)
  local values = redis.call('HMGET', g.key, unpack(fields))
  for i = 1, #fields do g[fields[i]] = values[i] and G.num(values[i]) or 0 end
  return values
end

M.group = function(q, name)
  local known = q.groups[name]
  if known then return known end
  local g = { q = q, name = name, key = q.P .. 'group:' .. name, queue = q.P .. 'groupq:' .. name, dirty = {} }
  read(g, FIELDS)
  if g.rateMax > 0 or g.tbCapacity > 0 then
    if not read(g, LIMITED)[#LIMITED] then g.tbTokens = g.tbCapacity end
  end
  q.groups[name] = g
  return g
end

local function write(g, fields)
  local set = {}
  for field in pairs(fields) do
    set[#set + 1], set[#set + 2] = field, G.text(g[field])
  end
  if #set > 0 then redis.call('HSET', g.key, unpack(set)) end
end

-- Change fields of the record; a call that touches groups many times writes each once, by M.flush.
M.put = function(g, fields)
  for field, value in pairs(fields) do
    g[field] = value
    g.dirty[field] = true
  end
  if not g.q.defer then
    write(g, g.dirty)
    g.dirty = {}
  end
end

M.flush = function(q)
  for _, g in pairs(q.groups) do
    write(g, g.dirty)
    g.dirty = {}
  end
end

-- The hash was changed past the record: read it anew when it is asked for again.
M.forget = function(q, name) q.groups[name] = nil end

-- SKIP: pass over sequences that no job holds any more.
M.skip = function(g)
  if g.nextSeq <= 0 then return end
  local n, steps = g.nextSeq, 0
  while steps < SKIPS_MAX and redis.call('HDEL', g.key, 'skip:' .. G.int(n)) == 1 do
    n, steps = n + 1, steps + 1
  end
  if n > g.nextSeq then M.put(g, { nextSeq = n }) end
  -- More may follow: whoever lets limited groups go on comes by again.
  if steps == SKIPS_MAX then M.limit_until(g.q, g, 1, 'NX') end
end

-- A sequence whose job will never be activated must not stop the ones behind it (W1).
M.mark_skip = function(g, seq)
  if g.nextSeq > 0 and seq >= g.nextSeq then redis.call('HSET', g.key, 'skip:' .. G.int(seq), '1') end
end

-- The sequence expected after `n`, looking past markers without consuming them.
M.after = function(g, n)
  local steps = 0
  n = n + 1
  while steps < SKIPS_MAX and redis.call('HEXISTS', g.key, 'skip:' .. G.int(n)) == 1 do
    n, steps = n + 1, steps + 1
  end
  return n
end

-- REFILL: tokens at `now`, in millitokens; the remainder keeps what is less than one.
M.refill = function(g, now)
  local capacity, rate = g.tbCapacity, g.tbRefillRate
  if capacity <= 0 then return 0 end
  if g.tbTokens >= capacity then
    g.tbTokens = capacity
    return capacity
  end
  local elapsed = now - g.tbLastRefill
  if elapsed <= 0 or rate <= 0 then return g.tbTokens end
  elapsed = math.min(elapsed, math.ceil(capacity * 1000 / rate))
  local raw = elapsed * rate + g.tbRefillRemainder
  M.put(g, {
    tbTokens = math.min(capacity, g.tbTokens + math.floor(raw / 1000)), tbLastRefill = now,
    tbRefillRemainder = raw % 1000,
  })
  return g.tbTokens
end

-- Cost of a job in millitokens, one token where it states none.
M.cost = function(h)
  local cost = G.num(h.cost)
  return cost > 0 and cost or 1000
end

-- Until when the group is limited, if that is later than `now` (W5).
M.limited_until = function(q, g, now)
  if q.any_limited == 0 then q.any_limited = redis.call('EXISTS', q.ratelimited) == 1 end
  if not q.any_limited then return nil end
  local at = tonumber(redis.call('ZSCORE', q.P .. 'ratelimited', g.name) or '')
  return at and at > now and at or nil
end

-- No job of the group runs before then. condition: 'GT' keeps a later time.
M.limit_until = function(q, g, at, condition)
  if condition then
    redis.call('ZADD', q.ratelimited, condition, G.score(at), g.name)
  else
    redis.call('ZADD', q.ratelimited, G.score(at), g.name)
  end
  q.any_limited = true
end

-- Parked jobs wait in order of their sequence (GSCORE).
local function score_of(id, h)
  local seq = G.count_of(h.orderingSeq)
  if seq > 0 then return seq end
  return tonumber(id) or G.num(h.timestamp)
end

-- One that keeps its slot stands before all others: it needs no free one, and would wait for it behind one that does.
local function place_of(g, id, h)
  local score = score_of(id, h)
  if h.slot ~= '1' then return score end
  local head = tonumber(redis.call('ZRANGE', g.queue, 0, 0, 'WITHSCORES')[2] or '')
  return head and head < score and head - 1 or score
end

M.park = function(q, g, id, h, resume_at)
  redis.call('ZADD', g.queue, G.score(place_of(g, id, h)), id)
  redis.call('HSET', q.J .. id, 'state', 'group-waiting', 'eid', '')
  if resume_at then M.limit_until(q, g, resume_at, 'GT') end
end
