-- glidemq_pause, glidemq_resume: stop and start fetching.   KEYS 1 meta, 2 events   -> 1
-- glidemq_rateLimit: consume a permit of the queue's rate limit.
--   KEYS 1 rate, 2 meta   ARGV 1 max (<= 0 = the value in meta), 2 window ms, 3 now
--   -> 0 a permit was consumed | ms until the window ends
-- glidemq_searchByName: return ids of jobs with a name.
--   KEYS 1 state key   ARGV 1 'zset' | 'stream', 2 name, 3 limit (100), 4 P:   -> ids
--   Bound: the first 5,000 members or entries.
local W = G.W

local PAGE = 1000
local RESUME_MARKERS = 32

G.export('pause', { 'allow-oom' }, function(keys)
  redis.call('HSET', keys[1], 'paused', '1')
  G.emit(keys[2], 'paused', '0')
  return 1
end)

G.export('resume', { 'allow-oom' }, function(keys)
  local q = W.queue(keys[1], 'meta')
  redis.call('HSET', keys[1], 'paused', '0')
  G.emit(keys[2], 'resumed', '0')
  if redis.call('EXISTS', q.wake) == 1 then G.wake(q, RESUME_MARKERS) end
  return 1
end)

G.export('rateLimit', { 'allow-oom' }, function(keys, args)
  local max, window, now = G.num(args[1]), G.duration(args[2]), G.num(args[3])
  if max <= 0 then
    local set = redis.call('HMGET', keys[2], 'rateLimitMax', 'rateLimitDuration')
    max, window = G.num(set[1]), G.duration(set[2])
    if max <= 0 then return 0 end
  end
  local state = redis.call('HMGET', keys[1], 'windowStart', 'count')
  local start, count = G.num(state[1]), G.num(state[2])
  if G.window_is_over(start, window, now) then
    redis.call('HSET', keys[1], 'windowStart', G.text(now), 'count', '1')
    return 0
  end
  if count >= max then return window - (now - start) end
  G.bump(keys[1], 'count')
  return 0
end)

local function is_named(key, wanted) return G.pcall('HGET', key, 'name') == wanted end

local function search_zset(key, wanted, limit, J)
  local found = {}
  for number = 0, W.PAGES_A_CALL - 1 do
    local page = redis.call('ZRANGE', key, number * PAGE, (number + 1) * PAGE - 1)
    for _, id in ipairs(page) do
      if #found >= limit then return found end
      if is_named(J .. id, wanted) then found[#found + 1] = id end
    end
    if #page < PAGE then return found end
  end
  return found
end

local function search_stream(key, wanted, limit, J)
  local found = {}
  W.find_in_stream(key, function(id)
    if #found < limit and id and is_named(J .. id, wanted) then found[#found + 1] = id end
    return #found >= limit or nil
  end)
  return found
end

local SEARCH = { zset = search_zset, stream = search_stream }

G.export('searchByName', { 'no-writes' }, function(keys, args)
  local search = SEARCH[args[1]]
  if not search then return {} end
  return search(keys[1], args[2], G.num(args[3], 100), (args[4] or '') .. 'job:')
end)
