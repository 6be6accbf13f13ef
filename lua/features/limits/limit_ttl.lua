-- Limits of the queue with a time to live. The field `temporaryLimits` of P:meta says until when they apply, and which
-- limits apply again then: concurrency until|concurrency then|rate until|rate max then|rate ms then (0 = none). Most
-- queues have no such field, which each exchange reads with the other settings.

local STORED = '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$'
local NONE = '0|0|0|0|0'
local T = G.limit_ttl

-- Return the parsed field; nil if it is missing or unusable.
T.read = function(text)
  local till, concurrency, rate_till, max, duration = G.match(text, STORED)
  if not till then return nil end
  return { till = G.num(till), concurrency = G.num(concurrency), rate_till = G.num(rate_till), max = G.num(max),
    duration = G.num(duration) }
end

T.write = function(q, t)
  local text = table.concat({ G.int(t.till), G.int(t.till > 0 and t.concurrency or 0), G.int(t.rate_till),
    G.int(t.rate_till > 0 and t.max or 0), G.int(t.rate_till > 0 and t.duration or 0) }, '|')
  if text == NONE then
    redis.call('HDEL', q.meta, 'temporaryLimits')
  else
    redis.call('HSET', q.meta, 'temporaryLimits', text)
  end
end

T.write_concurrency = function(q, concurrency)
  if concurrency > 0 then
    redis.call('HSET', q.meta, 'globalConcurrency', G.int(concurrency))
  else
    redis.call('HDEL', q.meta, 'globalConcurrency')
  end
end

T.write_rate = function(q, max, duration)
  if max > 0 and duration > 0 then
    redis.call('HSET', q.meta, 'rateLimitMax', G.int(max), 'rateLimitDuration', G.int(duration))
  else
    redis.call('HDEL', q.meta, 'rateLimitMax', 'rateLimitDuration')
  end
end

local function is_over(till, now) return till > 0 and now >= till end

-- Replace the limits whose time is over by those that apply again. Return whether there were any.
T.expire = function(q, t, now)
  local concurrency_over, rate_over = is_over(t.till, now), is_over(t.rate_till, now)
  if concurrency_over then
    T.write_concurrency(q, t.concurrency)
    t.till = 0
  end
  if rate_over then
    T.write_rate(q, t.max, t.duration)
    t.rate_till = 0
  end
  if concurrency_over or rate_over then T.write(q, t) end
  return concurrency_over or rate_over
end

-- Return the limits that apply: concurrency, rate max, rate ms, and ms until the first two end, -1 = they do not end.
T.effective = function(q, now)
  local found = redis.call('HMGET', q.meta, 'globalConcurrency', 'rateLimitMax', 'rateLimitDuration', 'temporaryLimits')
  local concurrency, max, duration, temporary = unpack(found)
  concurrency, max, duration = G.count_of(concurrency), G.count_of(max), G.count_of(duration)
  local t = T.read(temporary) or { till = 0, rate_till = 0 }
  local left, rate_left = t.till > 0 and t.till - now or -1, t.rate_till > 0 and t.rate_till - now or -1
  if is_over(t.till, now) then concurrency, left = t.concurrency, -1 end
  if is_over(t.rate_till, now) then max, duration, rate_left = t.max, t.duration, -1 end
  return concurrency, max, duration, left, rate_left
end

-- Return ms until the next of the limits ends, nil = none does.
T.next_end = function(t, now)
  local first = t.till > 0 and t.till or t.rate_till
  if t.rate_till > 0 then first = math.min(first, t.rate_till) end
  return first > 0 and math.max(0, first - now) or nil
end
