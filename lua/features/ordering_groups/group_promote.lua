-- Start parked jobs of a group: push them to the stream.
local M = G.groups

local PROMOTIONS_MAX, STALE_MAX, HEADS_MAX = 1000, 20, 10

-- Return how many more jobs the rate window admits; nil = none now, and the group is listed for later.
local function window_room(q, g, now)
  if now <= 0 or g.rateMax <= 0 or g.rateDuration <= 0 then return PROMOTIONS_MAX end
  if G.window_is_over(g.rateWindowStart, g.rateDuration, now) then return g.rateMax end
  if g.rateCount < g.rateMax then return g.rateMax - g.rateCount end
  M.limit_until(q, g, g.rateWindowStart + g.rateDuration)
  return nil
end

-- Fail a parked job: its slot or its turn is freed.
local function fail_parked(q, g, id, now, h, reason, event)
  redis.call('ZREM', g.queue, id)
  if h.slot == '1' then M.free_slot(q, g, id) else M.mark_skip(g, G.count_of(h.orderingSeq)) end
  G.end_failed(q, id, now, reason, event)
  G.retain_failed(q, id, now)
end

-- Return whether the first parked job holds a slot, so that it may run even if the group is full.
M.head_holds_slot = function(q, g)
  local id = G.member_at(g.queue, 0)
  return id ~= nil and redis.call('HGET', q.J .. id, 'slot') == '1'
end

M.is_full = function(g) return g.maxConcurrency > 0 and g.active >= g.maxConcurrency end

-- Return whether the bucket has tokens for the first parked job; if not, the group is listed for later.
local function has_tokens(q, g, now)
  if now <= 0 or g.tbCapacity <= 0 then return true end
  local tokens = M.refill(g, now)
  for _ = 1, HEADS_MAX do
    local id, score = G.member_at(g.queue, 0)
    if not id then return false end
    local h = G.job_of(q, id)
    local cost = M.cost(h)
    if not h.state then
      redis.call('ZREM', g.queue, id)
      M.mark_skip(g, G.count_of(score))
    elseif cost > g.tbCapacity then
      fail_parked(q, g, id, now, h, 'cost exceeds token bucket capacity', 'failed')
    elseif tokens >= cost or g.tbRefillRate <= 0 then
      return true
    else
      local wait = math.ceil((cost - tokens) * 1000 / g.tbRefillRate)
      M.limit_until(q, g, now + wait)
      return false
    end
  end
  -- More such jobs may follow: list the group for now, so that it is continued.
  M.limit_until(q, g, now)
  return false
end

local PROMOTED, DROPPED, STOP, RETURNED = 1, 2, 3, 4

-- Promote the first parked job. free: slots for jobs without one.
local function promote_head(q, g, now, expected, free)
  local id, score = G.member_at(g.queue, 0)
  if not id then return STOP end
  local h = G.job_of(q, id)
  local seq = G.count_of(h.orderingSeq)
  if h.state ~= 'group-waiting' then
    redis.call('ZREM', g.queue, id)
    if not h.state then M.mark_skip(g, G.count_of(score)) end
    return DROPPED
  end
  local holds = h.slot == '1'
  if not holds and (free <= 0 or (expected > 0 and seq > expected)) then return STOP end
  if now > 0 and G.is_expired(q, h.expireAt, h.timestamp, now) then
    fail_parked(q, g, id, now, h, 'expired', 'expired')
    return DROPPED
  end
  redis.call('ZREM', g.queue, id)
  G.make_waiting(q, id, h.name)
  return holds and RETURNED or PROMOTED, seq
end

-- A parked job that fails on the way may have held a slot, so the free slots are counted each time.
local function promote_jobs(q, g, now, budget)
  M.skip_marked(g)
  local expected, promoted, fresh = g.nextSeq, 0, 0
  for _ = 1, budget + STALE_MAX do
    if promoted >= budget then return promoted end
    local free = g.maxConcurrency > 0 and g.maxConcurrency - g.active - fresh or 1
    local outcome, seq = promote_head(q, g, now, expected, free)
    if outcome == STOP then return promoted end
    if outcome == DROPPED then
      M.skip_marked(g)
      expected = math.max(expected, g.nextSeq)
    else
      promoted = promoted + 1
      if outcome == PROMOTED then
        fresh = fresh + 1
        if seq == expected then expected = M.next_unmarked(g, seq) end
      end
    end
  end
  -- Many jobs have failed and more may follow: the next call that handles expired rate limits continues.
  M.limit_until(q, g, 1, 'NX')
  return promoted
end

-- Promote as many jobs as slots, window and bucket admit, `most` at most. Return how many were pushed to the stream.
M.promote_parked = function(q, g, now, most)
  M.skip_marked(g)
  if redis.call('ZCARD', g.queue) == 0 then return 0 end
  if M.is_full(g) and not M.head_holds_slot(q, g) then return 0 end
  if now > 0 and M.limited_until(q, g, now) then return 0 end
  local room = window_room(q, g, now)
  if not room or not has_tokens(q, g, now) then return 0 end
  return promote_jobs(q, g, now, math.min(room, most or PROMOTIONS_MAX, PROMOTIONS_MAX))
end
