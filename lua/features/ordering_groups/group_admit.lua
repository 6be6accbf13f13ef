-- Check the limits of a job's group before the job becomes active.
local M = G.groups

-- Return when bucket, rate window or explicit limit admit the job: nil = now, else epoch ms and the reply.
local function limited(q, g, now, cost)
  local at, reply = M.limited_until(q, g, now), 'GROUP_RATE_LIMITED'
  local counts = g.rateMax > 0 and g.rateDuration > 0 and g.rateCount >= g.rateMax
  if counts and not G.window_is_over(g.rateWindowStart, g.rateDuration, now) then
    at = math.max(at or 0, g.rateWindowStart + g.rateDuration)
  end
  if g.tbCapacity > 0 then
    local tokens = M.refill(g, now)
    if tokens < cost then
      at = math.max(at or 0, now + math.ceil((cost - tokens) * 1000 / math.max(g.tbRefillRate, 1)))
      reply = 'GROUP_TOKEN_LIMITED'
    end
  end
  return at, reply
end

-- Charge the group for an activation: tokens, a place in the window, a slot, its turn.
local function charge(g, now, cost, holds, seq)
  if g.tbCapacity > 0 then
    local tokens = M.refill(g, now)
    -- A full bucket does not accumulate: refilling starts now.
    if tokens >= g.tbCapacity then
      M.set_fields(g, { tbTokens = tokens - cost, tbLastRefill = now, tbRefillRemainder = 0 })
    else
      M.set_fields(g, { tbTokens = tokens - cost })
    end
  end
  if g.rateMax > 0 and g.rateDuration > 0 then
    if G.window_is_over(g.rateWindowStart, g.rateDuration, now) then
      M.set_fields(g, { rateWindowStart = now, rateCount = 1 })
    else
      M.set_fields(g, { rateCount = g.rateCount + 1 })
    end
  end
  if not holds then M.set_counters(g, g.active + 1, seq > 0 and seq >= g.nextSeq and seq + 1 or g.nextSeq) end
end

-- Return nil if the job may become active (its group is charged), else the documented reply: then it is parked or has
-- failed. The second value is the group as it is now. A job that already holds a slot (after a retry, a delay or a
-- stall) keeps it while it is parked.
M.enter = function(q, id, h, now)
  local g, seq = M.turn_of(q, id, h)
  local cost = M.cost(h)
  if seq > g.nextSeq then M.skip_marked(g) end
  local holds = M.holds_slot(g, h)
  if seq > 0 and g.nextSeq > 0 and seq > g.nextSeq then
    M.park(q, g, id, h)
    return 'GROUP_ORDERED', g
  end
  if not holds and g.maxConcurrency > 0 and g.active >= g.maxConcurrency then
    M.park(q, g, id, h)
    return 'GROUP_FULL', g
  end
  if g.tbCapacity > 0 and cost > g.tbCapacity then
    G.end_job(q, id, now, 'cost exceeds token bucket capacity', 'failed')
    return 'ERR:COST_EXCEEDS_CAPACITY', g
  end
  local at, reply = limited(q, g, now, cost)
  if at then
    if holds then M.keep_slot(q, id, h) end
    M.park(q, g, id, h, at)
    return reply, g
  end
  charge(g, now, cost, holds, seq)
  if seq > 0 and h.state == 'group-waiting' then redis.call('ZREM', g.queue, id) end
  return nil, g
end

-- The same for a job that may have no group. Jobs parked behind it, which may be next now, are started.
M.admit = function(q, id, h, now)
  if not G.given(h.groupKey) then return nil end
  local reply, g = M.enter(q, id, h, now)
  if not reply then M.promote_parked(q, g, now) end
  return reply
end
