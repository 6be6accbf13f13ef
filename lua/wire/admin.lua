-- glidemq_pause, glidemq_resume   KEYS 1 meta, 2 events   -> 1
-- glidemq_rateLimit     KEYS 1 rate, 2 meta   ARGV 1 max (<= 0 = what meta says), 2 window ms, 3 now
--   -> 0 a permit was taken | ms until the window ends
-- glidemq_searchByName  KEYS 1 state key   ARGV 1 'zset' | 'stream', 2 name, 3 limit (100), 4 P:   -> ids
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
  local max, window, now = W.num(args[1]), W.num(args[2]), W.num(args[3])
  if max <= 0 then
    local set = redis.call('HMGET', keys[2], 'rateLimitMax', 'rateLimitDuration')
    max, window = W.num(set[1] or ''), W.num(set[2] or '')
    if max <= 0 then return 0 end
  end
  local state = redis.call('HMGET', keys[1], 'windowStart', 'count')
  local start, count = W.num(state[1] or ''), W.num(state[2] or '')
  if now - start >= window then
    redis.call('HSET', keys[1], 'windowStart', W.text(now), 'count', '1')
    return 0
  end
  if count >= max then return window - (now - start) end
  redis.call('HINCRBY', keys[1], 'count', 1)
  return 0
end)

local function search_zset(key, wanted, limit, J)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if #found >= limit then break end
    if redis.call('HGET', J .. id, 'name') == wanted then found[#found + 1] = id end
  end
  return found
end

local function search_stream(key, wanted, limit, J)
  local found, from = {}, '-'
  repeat
    local page = redis.call('XRANGE', key, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local id = G.entry_job(entry[2])
      if #found < limit and id and redis.call('HGET', J .. id, 'name') == wanted then found[#found + 1] = id end
    end
    if #page > 0 then from = '(' .. page[#page][1] end
  until #page < PAGE or #found >= limit
  return found
end

local SEARCH = { zset = search_zset, stream = search_stream }

G.export('searchByName', { 'no-writes' }, function(keys, args)
  local search = SEARCH[args[1]]
  if not search then return {} end
  return search(keys[1], args[2], W.num(args[3], 100), (args[4] or '') .. 'job:')
end)
