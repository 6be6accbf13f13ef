-- Fetch jobs with a fair key: the keys take turns (a source of core/fetch.lua). Half of the free slots are offered to
-- them, the other half to the stream; each side gets the slots that the other does not use.

local SCORED = G.rows.scored
local F = G.fair

local UNBLOCKED_MAX = 100

-- Return the window of the key's rate limit: start and count.
local function window_of(q, key, limits, now)
  local text = redis.call('HGET', q.fair_rates, key)
  local start, count = string.match(text or '', '^(%d+)|(%d+)$')
  if not start or G.window_is_over(tonumber(start), limits.rate_ms, now) then return now, 0 end
  return tonumber(start), tonumber(count)
end

-- Return until when the key may not be served; nil = it may.
local function blocked_until(q, key, limits, now)
  if limits.paused then return F.PAUSED end
  if limits.concurrency > 0 and F.running(q, key) >= limits.concurrency then return F.FULL end
  if limits.rate_max > 0 then
    local start, count = window_of(q, key, limits, now)
    if count >= limits.rate_max then return start + limits.rate_ms end
  end
  return nil
end

local function count_start(q, key, limits, now)
  if not limits or limits.rate_max <= 0 then return end
  local start, count = window_of(q, key, limits, now)
  redis.call('HSET', q.fair_rates, key, G.int(start) .. '|' .. G.int(count + 1))
end

-- Serve the key whose turn is first. Return whether a job was fetched, how many jobs were removed from the key; nil =
-- no key is ready.
local function serve_next(q, fetching, limited)
  local head = redis.call('ZRANGE', q.fair, 0, 0, 'WITHSCORES')
  local key, turn = head[SCORED.member], G.num(head[SCORED.score])
  if not key then return nil end
  local limits = limited and F.limits(q, key) or nil
  local till = limits and blocked_until(q, key, limits, fetching.now)
  if till then
    F.block(q, key, till)
    return false, 0
  end
  local queue = F.queue_of(q, key)
  local ids = redis.call('ZRANGE', queue, 0, 1)
  if #ids > 1 then redis.call('ZADD', q.fair, 'XX', G.int(turn + F.step(limits)), key) else F.forget(q, key) end
  local id = G.first(ids)
  if not id then return false, 0 end
  redis.call('ZREM', queue, id)
  local fetched = G.activate(q, fetching, id, '')
  if fetched then count_start(q, key, limits, fetching.now) end
  return fetched, 1
end

-- Fetch up to `most` jobs. Return whether no key is ready any more. Bound: `most` jobs and REJECTIONS_MAX others.
local function serve(q, fetching, most)
  local limited, fetched, removed, empty = redis.call('EXISTS', q.fair_limits) == 1, 0, 0, false
  fetching.from_fair = true
  local ok, failure = pcall(function()
    for _ = 1, most + G.REJECTIONS_MAX do
      if fetched >= most or fetching.bytes >= G.REPLY_BYTES then return end
      local served, gone = serve_next(q, fetching, limited)
      if served == nil then
        empty = true
        return
      end
      removed = removed + gone
      if served then fetched = fetched + 1 end
    end
  end)
  fetching.from_fair = false
  fetching.fair_fetched = (fetching.fair_fetched or 0) + fetched
  if removed > 0 then G.bump(q.fair_state, 'waiting', -removed) end
  if not ok then error(failure, 0) end
  return empty
end

G.sources.fair = function(q, fetching, free)
  if not rawget(q, 'has_fair') or redis.call('EXISTS', q.fair) == 0 then return true end
  local share = math.floor(free / 2)
  if free % 2 == 1 then share = share + G.bump(q.fair_state, 'turn') % 2 end
  if share > 0 then serve(q, fetching, share) end
  return true -- `fair_rest` finds out whether jobs are left
end

G.sources.fair_rest = function(q, fetching, free)
  return not rawget(q, 'has_fair') or serve(q, fetching, free)
end

local function next_unblocked(q, now)
  local first = tonumber(redis.call('ZRANGE', q.fair_blocked, 0, 0, 'WITHSCORES')[SCORED.score] or '')
  return first and first < F.FULL and math.max(0, first - now) or -1
end

local function earlier(a, b)
  if a < 0 or (b >= 0 and b < a) then return b end
  return a
end

-- Let keys be served whose rate window has ended. Return ms until the next one ends, -1 = none.
local function unblock_due(q, now)
  local keys = redis.call('ZRANGEBYSCORE', q.fair_blocked, '-inf', G.int(now), 'LIMIT', 0, UNBLOCKED_MAX)
  for i = 1, #keys do
    if F.unblock(q, keys[i]) then F.count_freed(q, keys[i], true) end
  end
  if #keys == UNBLOCKED_MAX then return 0 end
  return next_unblocked(q, now)
end

-- Before an exchange fetches: promote and unblock what is due.
F.prepare = function(q, fetching, limit)
  if not rawget(q, 'has_fair') then return end
  fetching.next_due = earlier(F.promote_due(q, fetching.now, limit, fetching.quiet), unblock_due(q, fetching.now))
end

-- At its end: note when a key that it has rate limited may be served again, and wake up other workers for slots of
-- limited keys that it freed and did not use.
F.finish = function(q, fetching)
  if not rawget(q, 'has_fair') then return end
  fetching.next_due = earlier(fetching.next_due, next_unblocked(q, fetching.now))
  local freed = fetching.fair_freed
  local unused = freed and freed.count - (fetching.fair_fetched or 0) or 0
  if unused > 0 then G.wake(q, unused) end
end
