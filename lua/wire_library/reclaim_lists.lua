-- glidemq_reclaimStalledListJobs: recover stalled jobs without a stream entry.   KEYS 1 stream, 2 events
--   ARGV 1 min idle ms, 2 max stalled, 3 now, 4 failed key, 5 lock duration (0)   -> jobs handled
-- glidemq_healListActive: repair the counter `list-active`.   KEYS 1 id   -> its drift; a positive one has been
-- subtracted
-- glidemq_getActiveListJobIds: return active list jobs.
--   KEYS 1 id   ARGV 1 start, 2 end (inclusive; absent or < 0 = all)   -> ids
-- Jobs activated by this library are found in a set of ours. Only if the counter shows more, the keyspace is searched:
-- hashes only, with the queue's name matched literally. Bound: SCAN_STEPS scan steps.
local W = G.W

local SCAN_COUNT, SCAN_STEPS = '500', 1000

local function escaped(text) return (string.gsub(text, '[%*%?%[%]%^\\]', '\\%0')) end

-- Call found(id, h) for jobs in the sets. Return how many there are, and which.
local function known(q, found)
  local seen, n = {}, 0
  local function check(id)
    if seen[id] then return end
    local h = W.job(q, id)
    if h.state == 'active' then
      seen[id], n = true, n + 1
      found(id, h)
    end
  end
  for _, id in ipairs(redis.call('SMEMBERS', q.P .. 'list-taken')) do check(id) end
  for _, id in ipairs(redis.call('ZRANGE', q.list_active_ids, 0, -1)) do check(id) end
  return n, seen
end

-- Call found(id, h) for every active list job. Return their number and whether the search was complete.
local function each_active(q, expected, found)
  local n, seen = known(q, found)
  if n >= expected then return n, true end
  local pattern, cursor = escaped(q.J) .. '*', '0'
  for _ = 1, SCAN_STEPS do
    local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', SCAN_COUNT, 'TYPE', 'hash')
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      local id = string.sub(key, #q.J + 1)
      local h = not seen[id] and W.job(q, id)
      if h and h.state == 'active' and W.from_list(h) then
        seen[id], n = true, n + 1
        found(id, h)
      end
    end
    if cursor == '0' then return n, true end
  end
  return n, false
end

local function back_to_list(q, id, h)
  W.redispatch(q, id, h)
  W.push_list(q, h.lifo == '1' and 'lifo' or 'priority', id)
end

local function handle(q, r, id, h)
  local beat = G.past_time(h.lastActive, r.now) or 0
  if r.now - beat < W.stall_threshold(h, r.lock, r.min_idle) then return end
  redis.call('HSET', q.J .. id, 'lastActive', W.text(r.now))
  r.handled = r.handled + 1
  if not W.expired_now(q, id, h, r.now) and not W.stall(q, id, h, r.max_stalled, r.now) then
    back_to_list(q, id, h)
  end
  W.list_left(q, id)
end

-- Return jobs popped by a worker that never activated them to the head of their list.
local function return_popped(q, r)
  local key = q.P .. 'list-popped'
  local limit = G.now(q) - math.max(r.lock, r.min_idle)
  G.repair_times(key, G.now(q), limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', G.int(limit), 'LIMIT', 0, 100)) do
    redis.call('ZREM', key, id)
    local h = W.job(q, id)
    if h.state == 'waiting' and h.name and not W.expired_now(q, id, h, r.now) then
      redis.call('RPUSH', h.lifo == '1' and q.lifo or q.priority, id)
      W.list_left(q, id)
      r.handled = r.handled + 1
    end
  end
end

G.export('reclaimStalledListJobs', { 'allow-oom' }, function(keys, args)
  local q = W.queue(keys[1], 'stream')
  local r = { min_idle = W.num(args[1]), max_stalled = W.num(args[2], 1), now = W.num(args[3]), lock = W.num(args[5]),
    handled = 0 }
  return_popped(q, r)
  local counted = G.count_of(redis.call('GET', q.list_active))
  if counted <= 0 then return r.handled end
  each_active(q, counted, function(id, h) handle(q, r, id, h) end)
  return r.handled
end)

-- Never after an incomplete search; a counter below zero is set to 0.
G.export('healListActive', { 'allow-oom' }, function(keys)
  local q = W.queue(keys[1], 'id')
  local counter = W.num(redis.call('GET', q.list_active) or '')
  if counter < 0 then redis.call('SET', q.list_active, '0') end
  if counter <= 0 then return 0 end
  local actual, complete = each_active(q, counter, function() end)
  if not complete then return 0 end
  local drift = counter - actual
  if drift > 0 then redis.call('SET', q.list_active, G.int(actual)) end
  return drift
end)

G.export('getActiveListJobIds', { 'no-writes' }, function(keys, args)
  local q, ids = W.queue(keys[1], 'id'), {}
  local first, last = math.max(0, W.num(args[1])), W.num(args[2], -1)
  each_active(q, math.max(1, G.count_of(redis.call('GET', q.list_active))), function(id) ids[#ids + 1] = id end)
  if last < 0 then last = #ids - 1 end
  local slice = {}
  for i = first + 1, math.min(last + 1, #ids) do slice[#slice + 1] = ids[i] end
  return slice
end)
